//! The wish that the run that is on ends; each stage that can be left at once looks out for it.

use crate::error::Result;
use tokio::sync::watch;

/// One run's, for who wishes it and who does it.
#[derive(Debug, Clone)]
pub(super) struct Stop(watch::Sender<Option<&'static str>>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Stop {
    /// Wishes it; the first reason stays.
    pub(super) fn wish(&self, why: &'static str) {
        self.0.send_modify(|wish| {
            wish.get_or_insert(why);
        });
    }

    /// # Errors
    /// When it is wished.
    pub(super) fn check(&self) -> Result<()> {
        match *self.0.borrow() {
            Some(why) => Err(anyhow::anyhow!(why)),
            None => Ok(()),
        }
    }

    /// What is done, unless it is wished that it ends: then it is left where it is.
    ///
    /// # Errors
    /// What is done has failed, or is wished to end.
    pub(super) async fn or<T>(&self, done: impl Future<Output = Result<T>>) -> Result<T> {
        let mut wish = self.0.subscribe();
        tokio::select! {
            biased;
            // It can't end while `self` holds the sender.
            _ = wish.wait_for(Option::is_some) => {
                self.check()?;
                anyhow::bail!("the wish to end it is gone")
            }
            done = done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Stop;

    #[tokio::test]
    async fn what_goes_on_is_left_when_somebody_wishes_it() {
        let stop = Stop::default();
        assert!(stop.or(async { Ok(1) }).await.is_ok_and(|n| n == 1));
        assert!(stop.check().is_ok());
        let other = stop.clone();
        let endless = stop.or(async move {
            other.wish("a person has stopped it");
            std::future::pending::<crate::error::Result<()>>().await
        });
        let why = endless.await.unwrap_err().to_string();
        assert_eq!(why, "a person has stopped it");
        stop.wish("the keeper ends");
        let left = stop.or(async { Ok(()) }).await.unwrap_err();
        assert_eq!(left.to_string(), "a person has stopped it");
        assert!(stop.check().is_err());
    }
}
