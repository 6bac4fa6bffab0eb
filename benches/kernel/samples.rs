//! The samples of a contestant, and rounds in which all contestants take turns.

use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Samples in seconds.
#[derive(Debug)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn p50(&self) -> f64 {
        self.permille(500)
    }

    pub(crate) fn p95(&self) -> f64 {
        self.permille(950)
    }

    pub(crate) fn p99(&self) -> f64 {
        self.permille(990)
    }

    pub(crate) fn p999(&self) -> f64 {
        self.permille(999)
    }

    /// The percentile by nearest rank.
    fn permille(&self, permille: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * permille).div_ceil(1000);
        sorted[rank.max(1) - 1]
    }
}

impl From<Vec<f64>> for Samples {
    fn from(seconds: Vec<f64>) -> Self {
        Self(seconds)
    }
}

/// One turn of a contestant.
pub(crate) type Turn<'a> = &'a mut dyn FnMut() -> Result<Vec<f64>>;

/// Gives each contestant a turn in each round, so that noise affects all equally. Every second round has the reverse
/// order, and an additional first round warms up and does not count.
///
/// # Errors
/// When a turn fails, or Ctrl-C was pressed.
pub(crate) fn rounds<const N: usize>(count: usize, turns: [Turn<'_>; N]) -> Result<[Samples; N]> {
    let mut samples = [const { Samples(Vec::new()) }; N];
    for round in 0..=count {
        for at in 0..N {
            if INTERRUPTED.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            let whose = if round % 2 == 0 { at } else { N - 1 - at };
            let taken = turns[whose]()?;
            if round > 0 {
                samples[whose].0.extend(taken);
            }
        }
    }
    Ok(samples)
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C end the rounds instead of the process, which must remove its instance.
pub(crate) fn heed_interrupts() {
    thread::spawn(|| -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        loop {
            runtime.block_on(tokio::signal::ctrl_c())?;
            INTERRUPTED.store(true, Ordering::Relaxed);
        }
    });
}
