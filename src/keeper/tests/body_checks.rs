//! The checks of a body before its build: files that can't be parsed.

use super::failures::assert_end;
use super::harness::{KeeperHarness, OLD_IMAGE, evolve_request, fails, prints_text};
use crate::engine::fake_engine::CallEffect::HangBefore;
use crate::keeper::run::BuildPolicy;
use crate::keeper::run_request::RunRequest;
use crate::protocol::evolve::EvolveStage::{Building, Failed, Succeeded};

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_parsed_is_not_built() {
    let finds = || prints_text("kernel/x.py:3: invalid syntax\nselftest.d/1:7: syntax error\n");
    let found = Some("kernel/x.py:3: invalid syntax; selftest.d/1:7: syntax error (in `body/`");
    for (output, build_policy, why) in [
        (finds(), BuildPolicy::IfChanged, found),
        (finds(), BuildPolicy::Always, found),
        (finds(), BuildPolicy::Unchecked, None),
        (
            fails(127, "bash: python3: not found"),
            BuildPolicy::IfChanged,
            None,
        ),
        (HangBefore, BuildPolicy::Always, None),
    ] {
        let harness = KeeperHarness::start().await;
        let case = format!("{output:?} {build_policy:?}");
        harness.engine.at("exec os-host -c", move |_| output);
        let request = RunRequest {
            build_policy,
            ..evolve_request()
        };
        let record = harness.run(request).await;
        match why {
            Some(why) => {
                assert_eq!(record.failed_stage, Some(Building), "{case}");
                assert!(record.why.unwrap().contains(why), "{case}");
                assert!(!harness.engine.calls().contains(&"post build".into()));
                harness.assert_one_runs(OLD_IMAGE, &case);
            }
            None => assert_eq!(record.status, Succeeded, "{case}: {:?}", record.why),
        }
    }
    let end = (
        Failed,
        Building,
        "`mcp.json` is not valid JSON: key must be a string",
    );
    assert_end(end, "the servers can't be read", |harness| {
        harness.write_body_file("mcp.json", "{\"mcpServers\": {]}");
    })
    .await;
    let end = (
        Failed,
        Building,
        "`desktop/services.yaml` is not valid YAML: ",
    );
    assert_end(end, "the services can't be read", |harness| {
        harness.write_body_file("desktop/services.yaml", "services:\n  - name: [xvfb\n");
    })
    .await;
}
