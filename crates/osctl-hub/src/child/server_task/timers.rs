//! The timers of the task: deadlines of calls, the restart delay, the end of an idle server, and subscriptions that
//! are renewed.

use super::{PendingOrigin, ServerTask};
use crate::child::pending_requests::PendingRequest;
use crate::child::restart_policy::{ServerDemand, ServerEvent};
use tokio::time::{Instant, sleep_until};

impl ServerTask {
    /// The next time at which a timer fires.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let next_event = self.lifecycle.next_event(self.demand());
        let next_event = next_event.map(|(at, _)| self.started_at + at);
        let deadline = self.calls.pending.earliest_deadline();
        let times = [deadline, next_event, self.connection.relisten_at];
        times.into_iter().flatten().min()
    }

    /// What the server runs for.
    pub(super) fn demand(&self) -> ServerDemand {
        let idle = self.spec.config.idle_timeout;
        ServerDemand {
            has_open_calls: self.calls.count() > 0,
            is_awaited: !self.calls.queued.is_empty() || !self.handshake.waiters.is_empty(),
            has_subscriptions: !self.subscriptions.is_empty(),
            is_draining: self.is_draining,
            idle_until: idle.map(|idle| self.last_used - self.started_at + idle),
        }
    }

    pub(super) async fn handle_timers(&mut self) {
        let now = Instant::now();
        while let Some((server_id, call)) = self
            .calls
            .pending
            .take_matching(|call| call.deadline <= now)
        {
            self.time_out_request(&server_id, call);
        }
        if self.connection.relisten_at.is_some_and(|at| at <= now) {
            self.renew_listen_request();
        }
        while let Some((at, event)) = self.lifecycle.next_event(self.demand())
            && self.started_at + at <= now
        {
            if event == ServerEvent::Needed {
                return self.ensure_started().await;
            }
            self.apply_event(event);
            if event == ServerEvent::Idle {
                self.spec.log.append_note("the hub ends the idle server");
                self.close_pipe();
            }
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
