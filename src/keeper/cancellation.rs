//! Cancellation of the current run. Each stage that can be interrupted checks it.

use crate::error::Result;
use crate::protocol::evolve::CANCELLED_BY_USER;
use tokio::sync::watch;

/// The cancellation flag of one run, shared by the callers that cancel the run and the stages that check it.
#[derive(Debug, Clone)]
pub(super) struct RunCancellation(watch::Sender<Option<&'static str>>);

impl Default for RunCancellation {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl RunCancellation {
    /// Cancels the run. The first reason stays.
    pub(super) fn cancel_run(&self, why: &'static str) {
        self.0.send_modify(|requested| {
            requested.get_or_insert(why);
        });
    }

    /// Whether the user cancelled the evolve, as opposed to a keeper that shuts down.
    pub(super) fn is_by_user(&self) -> bool {
        *self.0.borrow() == Some(CANCELLED_BY_USER)
    }

    /// # Errors
    /// When the run is cancelled.
    pub(super) fn check_cancelled(&self) -> Result<()> {
        match *self.0.borrow() {
            Some(why) => Err(anyhow::anyhow!(why)),
            None => Ok(()),
        }
    }

    /// Returns when the run is cancelled.
    pub(super) async fn wait_cancelled(&self) {
        // The channel stays open while `self` holds the sender.
        let _ = self.0.subscribe().wait_for(Option::is_some).await;
    }

    /// Runs a future until it ends or the run is cancelled. On cancellation the future is dropped at its current
    /// point.
    ///
    /// # Errors
    /// When the future fails or the run is cancelled.
    pub(super) async fn run_until_cancelled<T>(
        &self,
        done: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            () = self.wait_cancelled() => {
                self.check_cancelled()?;
                anyhow::bail!("the cancellation channel was closed")
            }
            done = done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RunCancellation;
    use crate::protocol::evolve::CANCELLED_BY_USER;

    #[tokio::test]
    async fn a_cancellation_drops_the_running_future() {
        let stop = RunCancellation::default();
        assert!(
            stop.run_until_cancelled(async { Ok(1) })
                .await
                .is_ok_and(|n| n == 1)
        );
        assert!(stop.check_cancelled().is_ok() && !stop.is_by_user());
        let other = stop.clone();
        let endless = stop.run_until_cancelled(async move {
            other.cancel_run(CANCELLED_BY_USER);
            std::future::pending::<crate::error::Result<()>>().await
        });
        let why = endless.await.unwrap_err().to_string();
        assert_eq!(why, CANCELLED_BY_USER);
        stop.cancel_run("the keeper was stopped");
        let left = stop
            .run_until_cancelled(async { Ok(()) })
            .await
            .unwrap_err();
        assert_eq!(left.to_string(), CANCELLED_BY_USER);
        assert!(stop.check_cancelled().is_err() && stop.is_by_user());
        let other = RunCancellation::default();
        other.cancel_run("the keeper was stopped");
        assert!(!other.is_by_user());
    }
}
