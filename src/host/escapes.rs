//! Versions of an engine and its parts with known escapes from a container or a build.

use std::collections::BTreeMap;

/// The numeric part of a version: `1.1.5+ds1` is 1.1.5.
type EngineVersion = [u64; 3];

/// Since runc 1.1.12, no container and no command starts in a folder of the host (CVE-2024-21626). Every older version
/// also has the mask vulnerabilities below.
const FIXED_RUNC: EngineVersion = [1, 1, 12];
/// Since these versions, runc checks masked paths and the targets of its writes (CVE-2025-31133, 52565, 52881), each in
/// its own release line.
const FIXED_RUNC_MASKS: [EngineVersion; 2] = [[1, 2, 8], [1, 3, 3]];
/// The first candidate of 1.4.0 with the same fix.
const FIXED_RUNC_CANDIDATE: u64 = 3;
/// Since these Docker Engine versions, BuildKit confines the mounts of a build (CVE-2024-23651, 23652, 23653).
const FIXED_ENGINE_24: EngineVersion = [24, 0, 9];
const FIXED_ENGINE_25: EngineVersion = [25, 0, 2];

/// The hint for a known escape.
pub(crate) const ENGINE_ESCAPE_FIX: &str = "update the engine; distributions backport fixes to older versions, \
     and the changelog of the package then names the CVE";

/// The known escapes, as sentences. Parts that the engine does not name are not checked.
pub(crate) fn find_known_escapes(components: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    let part = |name: &str| {
        let version = components.get(name)?;
        Some((version, parse_engine_version(version)?))
    };
    if let Some((text, version)) = part("runc")
        && has_open_masks(text, version)
    {
        let (way, cve) = match version < FIXED_RUNC {
            true => (
                "an image can let code escape from its container, and ",
                "CVE-2024-21626, ",
            ),
            false => ("", ""),
        };
        found.push(format!("runc {text} is older than 1.2.8, 1.3.3 or 1.4.0-rc.3: {way}code inside can reach files of the host while a container starts ({cve}CVE-2025-31133, CVE-2025-52565, CVE-2025-52881)"));
    }
    if let Some((text, version)) = part("Engine") {
        let is_open = match version[0] {
            25 => version < FIXED_ENGINE_25,
            _ => version < FIXED_ENGINE_24,
        };
        if is_open {
            found.push(format!("Docker Engine {text} is older than 24.0.9 or 25.0.2: a build can reach files of the host through its mounts (CVE-2024-23651, CVE-2024-23652, CVE-2024-23653)"));
        }
    }
    found
}

fn has_open_masks(text: &str, version: EngineVersion) -> bool {
    let [in_1_2, in_1_3] = FIXED_RUNC_MASKS;
    match version {
        [1, 3, _] => version < in_1_3,
        [1, 4, 0] => candidate_number(text).is_some_and(|number| number < FIXED_RUNC_CANDIDATE),
        _ => version < in_1_2,
    }
}

/// The number of a release candidate, written as `1.4.0-rc.2` or `1.4.0~rc2`.
fn candidate_number(text: &str) -> Option<u64> {
    let (_, behind) = text.split_once("rc")?;
    let number = behind.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let end = number.find(|c: char| !c.is_ascii_digit());
    number[..end.unwrap_or(number.len())].parse().ok()
}

fn parse_engine_version(text: &str) -> Option<EngineVersion> {
    let mut version = EngineVersion::default();
    let text = text.trim_start_matches('v');
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let numbers = text[..end.unwrap_or(text.len())].split('.');
    for (place, number) in version.iter_mut().zip(numbers) {
        *place = number.parse().ok()?;
    }
    Some(version)
}

#[cfg(test)]
mod tests {
    use super::find_known_escapes;

    #[test]
    fn versions_with_known_escapes_are_named() {
        let found = |engine: &str, runc: &str| {
            let parts = [("Engine", engine), ("runc", runc)];
            let parts = parts.map(|(name, version)| (name.to_owned(), version.to_owned()));
            find_known_escapes(&parts.into()).len()
        };
        for (engine, runc, number) in [
            ("20.10.24+dfsg1", "1.1.5+ds1", 2),
            ("24.0.8", "1.1.12", 2),
            ("24.0.9", "1.1.11", 1),
            ("25.0.1", "1.2.8", 1),
            ("25.0.2", "1.2.7", 1),
            ("25.0.2", "1.2.8", 0),
            ("28.3.0", "v1.3.1", 1),
            ("28.3.0", "v1.3.3", 0),
            ("28.3.0", "1.4.0-rc.2", 1),
            ("28.3.0", "1.4.0~rc2", 1),
            ("28.3.0", "v1.4.0-rc1+dev", 1),
            ("28.3.0", "1.4.0-rc.3", 0),
            ("28.3.0", "1.4.0-rc.10", 0),
            ("28.3.0", "1.4.0~rc20-1", 0),
            ("29.0.0", "1.4.0", 0),
            ("unknown", "", 0),
        ] {
            assert_eq!(found(engine, runc), number, "{engine} {runc}");
        }
        let old = find_known_escapes(&[("runc".into(), "1.1.11".into())].into());
        assert!(old[0].contains("CVE-2024-21626, CVE-2025-31133"), "{old:?}");
        assert_eq!(
            find_known_escapes(&[("Podman Engine".into(), "4.3.1".into())].into()).len(),
            0
        );
    }
}
