//! The wish that the run that is on ends; each stage that can be left at once looks out for it.

use crate::error::Result;
use tokio::sync::watch;

/// Why a run ends that somebody has had enough of.
pub(super) const STOPPED_BY_PERSON: &str = "a person has stopped it";

/// One run's, for who wishes it and who does it.
#[derive(Debug, Clone)]
pub(super) struct RunCancellation(watch::Sender<Option<&'static str>>);

impl Default for RunCancellation {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl RunCancellation {
    /// Wishes it; the first reason stays.
    pub(super) fn cancel_run(&self, why: &'static str) {
        self.0.send_modify(|wish| {
            wish.get_or_insert(why);
        });
    }

    /// Whether a person wishes it, and not a keeper that ends itself.
    pub(super) fn is_a_persons(&self) -> bool {
        *self.0.borrow() == Some(STOPPED_BY_PERSON)
    }

    /// # Errors
    /// When it is wished.
    pub(super) fn check_cancelled(&self) -> Result<()> {
        match *self.0.borrow() {
            Some(why) => Err(anyhow::anyhow!(why)),
            None => Ok(()),
        }
    }

    /// Returns when it is wished.
    pub(super) async fn wait_cancelled(&self) {
        // It can't end while `self` holds the sender.
        let _ = self.0.subscribe().wait_for(Option::is_some).await;
    }

    /// What is done, unless it is wished that it ends: then it is left where it is.
    ///
    /// # Errors
    /// What is done has failed, or is wished to end.
    pub(super) async fn run_until_cancelled<T>(
        &self,
        done: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            () = self.wait_cancelled() => {
                self.check_cancelled()?;
                anyhow::bail!("the wish to end it is gone")
            }
            done = done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RunCancellation, STOPPED_BY_PERSON};

    #[tokio::test]
    async fn what_goes_on_is_left_when_somebody_wishes_it() {
        let stop = RunCancellation::default();
        assert!(
            stop.run_until_cancelled(async { Ok(1) })
                .await
                .is_ok_and(|n| n == 1)
        );
        assert!(stop.check_cancelled().is_ok() && !stop.is_a_persons());
        let other = stop.clone();
        let endless = stop.run_until_cancelled(async move {
            other.cancel_run(STOPPED_BY_PERSON);
            std::future::pending::<crate::error::Result<()>>().await
        });
        let why = endless.await.unwrap_err().to_string();
        assert_eq!(why, "a person has stopped it");
        stop.cancel_run("the keeper ends");
        let left = stop
            .run_until_cancelled(async { Ok(()) })
            .await
            .unwrap_err();
        assert_eq!(left.to_string(), "a person has stopped it");
        assert!(stop.check_cancelled().is_err() && stop.is_a_persons());
        let other = RunCancellation::default();
        other.cancel_run("the keeper ends");
        assert!(!other.is_a_persons());
    }
}
