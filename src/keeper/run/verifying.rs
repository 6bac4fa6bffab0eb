//! *verifying*: the new container in its place is as healthy as the old one was, and has its state.

use super::RunExecutor;
use crate::engine::EngineProgress;
use crate::error::Result;
use crate::keeper::sanitize;
use crate::protocol::evolve::container_reports::{ExpectedState, VerifyReply};
use std::time::Duration;

impl RunExecutor {
    pub(super) async fn run_verifying(&mut self) -> Result<()> {
        let name = self.target.container_name().to_owned();
        let limits = self.target.config.limits.clone();
        let (start, limit) = (
            Duration::from_secs(limits.start),
            Duration::from_secs(limits.verify),
        );
        self.log
            .report_step("waiting until the container is healthy");
        self.target
            .wait_until_healthy(&name, start, &self.log)
            .await?;
        self.log
            .report_step("checking variables, ports and services");
        let expected = ExpectedState {
            same_image: self.keeps_image(),
            ..self.journal_entry.expected.clone()
        };
        let expected = serde_json::to_string(&expected)?;
        let verb = ["verify", "--json", "--expected", &expected];
        let reply: Result<VerifyReply> = self.target.exec_verb(&name, &verb, limit).await;
        let verified = match reply {
            Ok(verified) => verified,
            Err(error) => {
                self.target.copy_log_tail(&name, &self.log).await;
                return Err(error);
            }
        };
        if !verified.receipt.is_empty() {
            self.record.receipt = sanitize::sanitize_receipt(verified.receipt);
        }
        let reported = std::mem::take(&mut self.record.other_state);
        self.record.other_state = sanitize::merge_non_variables(reported, verified.other_state);
        self.record_checks(verified.passed, verified.checks)?;
        self.target.check_running(&name, &self.log).await
    }
}
