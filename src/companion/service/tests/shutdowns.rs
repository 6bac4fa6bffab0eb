//! The end of the services with the companion.

use super::harness::{ALL_SERVICES, ServiceHarness};
use crate::companion::service::ServiceNeed;
use crate::companion::service::fake_processes::{start_needed, take_service};
use crate::companion::tests::clock::settle;

#[tokio::test(start_paused = true)]
async fn each_service_ends_before_the_services_that_it_needs() {
    let harness = ServiceHarness::start(ALL_SERVICES);
    harness.set_need(ServiceNeed::Browser, true).await;
    harness.set_need(ServiceNeed::Viewer, true).await;
    let mut services = start_needed().await;
    harness.stop().await;
    for (name, waiting) in [
        ("viewer", &["screen", "windows"][..]),
        ("browser", &["screen", "windows"]),
        ("windows", &["screen"]),
        ("screen", &[]),
    ] {
        let mut service = take_service(&mut services, name);
        for other in services
            .iter_mut()
            .filter(|one| waiting.contains(&&*one.name))
        {
            assert_eq!(
                other.supervisor.next_request().await,
                None,
                "{}",
                other.name
            );
        }
        service.exit_when_shut_down().await;
    }
    harness.wait_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_companion_that_ends_starts_no_service() {
    let harness = ServiceHarness::start(ALL_SERVICES);
    harness.set_need(ServiceNeed::Browser, true).await;
    let mut services = start_needed().await;
    harness.stop().await;
    // A service that ends in that time does not restart, and its dependents end in their order.
    take_service(&mut services, "screen").exit(1).await;
    for name in ["browser", "windows"] {
        let mut service = take_service(&mut services, name);
        service.exit_when_shut_down().await;
    }
    settle().await;
    harness.wait_ended().await;
    assert!(start_needed().await.is_empty());
}
