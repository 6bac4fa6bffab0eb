//! The ports of the host: used by others before `up` checks, and after.

use crate::harness::Home;
use crate::proxies::observed_engine_at_port;
use crate::trials;
use std::net::TcpListener;
use std::sync::Mutex;

trials![a_used_port_is_reported_with_its_owner_and_a_fix];

/// A free port below the ephemeral ports, which begin at 32768.
pub(crate) fn free_port() -> u16 {
    // Two checkouts that are tested at the same time use different ranges.
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (first..32_768).find(is_free).unwrap()
}

fn a_used_port_is_reported_with_its_owner_and_a_fix() {
    let mut home = Home::new("it-port");
    let port = free_port();
    let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    home.env
        .insert("OSCTL_PORTS_KERNEL".into(), port.to_string());
    let ran = home.run(["up", "--yes"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr
            .contains(&format!("port {port} on 127.0.0.1 is taken by")),
        "{ran:?}"
    );
    assert!(
        ran.stderr
            .contains(&format!("process {}", std::process::id())),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("--auto-ports"), "{ran:?}");
    home.ok(["up", "--yes", "--auto-ports"]);
    assert_ne!(home.api().address, format!("127.0.0.1:{port}"));
    home.env.clear();
    let address = home.api().address;
    home.ok(["down"]);
    home.up();
    assert_eq!(home.api().address, address, "the instance kept no port");

    // A process that binds the port between the choice and the start only causes another choice.
    home.ok(["down"]);
    let stolen = Mutex::new(None);
    let engine = observed_engine_at_port({
        let address = address.clone();
        move |asked| {
            let mut stolen = stolen.lock().unwrap();
            if asked.contains("/start HTTP") && stolen.is_none() {
                *stolen = Some(TcpListener::bind(&address).unwrap());
            }
        }
    });
    home.env.insert("DOCKER_HOST".into(), engine);
    home.ok(["up", "--yes", "--auto-ports"]);
    assert_ne!(home.api().address, address);
    assert_eq!(home.api().exec("1")["status"], "completed");
    home.down();
}
