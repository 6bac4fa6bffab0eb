//! Supervisors that wait for a process: a command does not wait for the start of its supervisor.

use super::client::Supervisor;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Number of supervisors started in advance.
const MAX_IDLE_SUPERVISORS: usize = 2;
/// Delay from the use of a supervisor to the start of the next: the new command gets the processors first.
const SUPERVISOR_POOL_REFILL_DELAY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Default)]
pub struct SupervisorPool(Arc<Mutex<Vec<Supervisor>>>);

impl SupervisorPool {
    /// Takes a supervisor from the pool, or starts one.
    ///
    /// # Errors
    /// When no process can be created.
    pub fn take_or_spawn(&self) -> io::Result<Supervisor> {
        let idle = {
            let mut supervisors = self.0.lock();
            supervisors.retain(Supervisor::is_waiting);
            supervisors.pop()
        };
        let supervisors = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SUPERVISOR_POOL_REFILL_DELAY).await;
            supervisors.refill();
        });
        idle.map_or_else(Supervisor::spawn_supervisor, Ok)
    }

    fn refill(&self) {
        while self.0.lock().len() < MAX_IDLE_SUPERVISORS {
            match Supervisor::spawn_supervisor() {
                Ok(supervisor) => self.0.lock().push(supervisor),
                // The next command tries again, and reports the error.
                Err(error) => {
                    return tracing::debug!(%error, "a supervisor can't be started in advance");
                }
            }
        }
    }
}
