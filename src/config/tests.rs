use super::{Config, ResolvedConfig, parse_mount, parse_resolution, parse_size};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn a_desktop_that_ends_immediately_is_refused() {
    let check = |idle| {
        let mut config = Config::default();
        config.desktop.idle = idle;
        ResolvedConfig {
            config,
            values: BTreeMap::new(),
            warnings: Vec::new(),
            sections: Vec::new(),
        }
        .check_values()
    };
    assert!(check(1).is_ok());
    assert!(check(0).unwrap_err().to_string().contains("desktop.idle"));
}

#[test]
fn port_zero_is_refused_by_its_key() {
    for key in ["ports.kernel", "ports.mcp", "ports.vnc"] {
        let load = |port: u16| {
            ResolvedConfig::load(
                Path::new("/none"),
                None,
                "default",
                vec![(key, json!(port))],
            )
        };
        load(1).unwrap();
        let error = load(0).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{error}");
    }
}

#[test]
fn a_resolution_is_two_numbers_that_fit_a_screen() {
    assert_eq!(parse_resolution("1280x800"), Some((1280, 800)));
    for text in [
        "",
        "1280",
        "1280x",
        "x800",
        "1280*800",
        "1x1",
        "99999x800",
        "-1x800",
    ] {
        assert_eq!(parse_resolution(text), None, "{text}");
    }
}

#[test]
fn sizes_and_mounts_are_read_as_docker_does() {
    assert_eq!(parse_size("512m"), Some(512 << 20));
    assert_eq!(parse_size("1.5g"), Some(3 << 29));
    assert_eq!(parse_size("12"), Some(12));
    assert_eq!(parse_size("many"), None);
    assert_eq!(
        parse_mount("/a:/b:ro"),
        Some(("/a".into(), "/b".into(), true))
    );
    assert_eq!(
        parse_mount("/a:/b"),
        Some(("/a".into(), "/b".into(), false))
    );
    assert_eq!(parse_mount("a:/b"), None);
}
