//! The timers of the task: deadlines of calls, the restart delay, the end of an idle server, and subscriptions that
//! are renewed.

use super::{PendingOrigin, ServerTask};
use crate::child::pending_requests::PendingRequest;
use crate::child::restart_policy::{ServerEvent, ServerPhase};
use tokio::time::{Instant, sleep_until};

impl ServerTask {
    /// The next time at which a timer fires.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let next_start = match self.lifecycle.phase {
            ServerPhase::Backoff { until } => Some(self.started_at + until),
            // A server with subscriptions is restarted without a request.
            ServerPhase::Down if !self.subscriptions.is_empty() && !self.is_draining => {
                Some(self.started_at)
            }
            _ => None,
        };
        let idle = self.spec.config.idle_timeout.filter(|_| self.is_idle());
        let idle = idle.map(|idle| self.last_used + idle);
        [
            self.pending_requests.earliest_deadline(),
            next_start,
            idle,
            self.relisten_at,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether the server runs without open calls and subscriptions.
    fn is_idle(&self) -> bool {
        self.lifecycle.phase == ServerPhase::Up
            && self.has_no_open_calls()
            && self.subscriptions.is_empty()
    }

    pub(super) async fn handle_timers(&mut self) {
        let now = Instant::now();
        while let Some((server_id, call)) = self
            .pending_requests
            .take_matching(|call| call.deadline <= now)
        {
            self.time_out_request(&server_id, call);
        }
        if let ServerPhase::Backoff { until } = self.lifecycle.phase
            && self.started_at.elapsed() >= until
        {
            self.apply_event(ServerEvent::BackoffElapsed);
        }
        // A draining task still answers the calls that wait.
        let is_waited_for = !self.queued_requests.is_empty() || !self.initialize_waiters.is_empty();
        let is_listened_to = !self.subscriptions.is_empty() && !self.is_draining;
        if self.lifecycle.phase == ServerPhase::Down && (is_waited_for || is_listened_to) {
            self.ensure_started().await;
        }
        if self.relisten_at.is_some_and(|at| at <= now) {
            self.renew_listen_request();
        }
        let idle = self.spec.config.idle_timeout;
        if self.is_idle() && idle.is_some_and(|idle| self.last_used + idle <= now) {
            self.spec.log.append_note("the hub ends the idle server");
            self.apply_event(ServerEvent::Idle);
            self.close_pipe();
        }
    }

    fn time_out_request(&mut self, server_id: &str, call: PendingRequest<PendingOrigin>) {
        let seconds = call.timeout.as_secs_f64();
        let why = format!("the server did not answer within {seconds} s");
        match call.origin {
            PendingOrigin::Client { reply, .. } => {
                reply.send_error(&call.client_request_id, -32603, &why);
                self.send_cancellation(server_id, "timeout");
            }
            PendingOrigin::Initialize | PendingOrigin::Discovery => self.handle_server_loss(&why),
            PendingOrigin::List { .. } | PendingOrigin::Ignored => {}
        }
    }
}

pub(super) async fn sleep_until_wake(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
