//! Settings for a company network: the host's additional certificate authorities and its proxies.

use crate::image::CaCertificate;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The folders in which distributions keep the authorities that an administrator added.
const CA_FOLDERS: &[&str] = &[
    "/usr/local/share/ca-certificates",
    "/etc/pki/ca-trust/source/anchors",
    "/etc/ca-certificates/trust-source/anchors",
];

const CA_README_TEXT: &str = "The additional certificate authorities that the host trusts.\n";

/// The host's additional authorities; a note keeps the folder from being empty.
pub(crate) fn extra_certificates() -> Vec<CaCertificate> {
    let mut found = vec![CaCertificate {
        name: "README".into(),
        pem: CA_README_TEXT.into(),
    }];
    for folder in CA_FOLDERS {
        collect_certificates(Path::new(folder), &mut found);
    }
    deduplicate_names(found)
}

/// Sorts by name and contents, and removes duplicates. An authority whose name is in use gets a number.
fn deduplicate_names(mut found: Vec<CaCertificate>) -> Vec<CaCertificate> {
    found.sort_by(|a, b| (&a.name, &a.pem).cmp(&(&b.name, &b.pem)));
    found.dedup_by(|a, b| a.name == b.name && a.pem == b.pem);
    let mut taken: BTreeSet<String> = found.iter().map(|c| c.name.clone()).collect();
    let mut before = String::new();
    for certificate in &mut found {
        if certificate.name != before {
            before.clone_from(&certificate.name);
            continue;
        }
        let stem = before.trim_end_matches(".crt");
        let free = (2_u32..)
            .map(|number| format!("{stem}-{number}.crt"))
            .find(|name| !taken.contains(name));
        certificate.name = free.unwrap_or_default();
        taken.insert(certificate.name.clone());
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn collect_certificates(folder: &Path, found: &mut Vec<CaCertificate>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for path in entries.filter_map(|e| Some(e.ok()?.path())) {
        if path.is_dir() {
            collect_certificates(&path, found);
            continue;
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let known = path.extension().is_some_and(|e| e == "crt" || e == "pem");
        match fs::read(&path) {
            // update-ca-certificates reads only PEM, in files named .crt.
            Ok(pem) if known && pem.windows(27).any(|w| w == b"-----BEGIN CERTIFICATE-----") => {
                found.push(CaCertificate {
                    name: format!("{stem}.crt"),
                    pem,
                });
            }
            _ => {}
        }
    }
}

/// Variables that name proxies, in one of their two spellings.
pub(crate) const PROXY_VARIABLES: [&str; 5] = [
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "no_proxy",
    "all_proxy",
];

/// Looks up a variable of the shell; `None` if unset or empty.
pub(crate) type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The shell's proxy variables, in both spellings if either is set. The user and password are removed from the address,
/// unless `named` has one of the spellings: the agent can read the variables.
pub(crate) fn proxy_variables(
    shell: VariableLookup<'_>,
    named: &BTreeSet<String>,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (name, value) in defined_proxies(shell) {
        let value = match has_secret(name, &value, named) {
            true => strip_user(&value),
            false => value,
        };
        found.insert(name.to_uppercase(), value.clone());
        found.insert(name.into(), value);
    }
    if found.contains_key("http_proxy") || found.contains_key("https_proxy") {
        // Services in the container call each other directly; no proxy can reach them.
        for name in ["no_proxy", "NO_PROXY"] {
            let own = "localhost,127.0.0.1,::1";
            let value = found
                .get(name)
                .map_or_else(|| own.into(), |given| format!("{given},{own}"));
            found.insert(name.into(), value);
        }
    }
    found
}

/// The shell's proxy variables whose user and password [`proxy_variables`] removes.
pub(crate) fn proxies_with_secret(
    shell: VariableLookup<'_>,
    named: &BTreeSet<String>,
) -> Vec<String> {
    let set = defined_proxies(shell).into_iter();
    set.filter(|(name, value)| has_secret(name, value, named))
        .map(|(name, _)| name.to_uppercase())
        .collect()
}

/// Whether both names are spellings of the same variable; a proxy's variable has two.
pub(crate) fn is_same_variable(one: &str, other: &str) -> bool {
    one == other || (one.eq_ignore_ascii_case(other) && is_proxy(one))
}

/// The spellings of a variable.
pub(crate) fn variable_spellings(name: &str) -> Vec<String> {
    match is_proxy(name) {
        true => vec![name.to_lowercase(), name.to_uppercase()],
        false => vec![name.into()],
    }
}

fn is_proxy(name: &str) -> bool {
    PROXY_VARIABLES.contains(&&*name.to_lowercase())
}

fn defined_proxies(shell: VariableLookup<'_>) -> Vec<(&'static str, String)> {
    let set = PROXY_VARIABLES.into_iter().filter_map(|name| {
        let value = shell(name).or_else(|| shell(&name.to_uppercase()));
        Some((name, value?))
    });
    set.collect()
}

fn has_secret(name: &str, value: &str, named: &BTreeSet<String>) -> bool {
    name != "no_proxy"
        && value.contains('@')
        && !named.iter().any(|named| named.eq_ignore_ascii_case(name))
}

/// The address of a proxy without the part between the scheme and the last `@`: a password may contain `/` and `@`.
fn strip_user(address: &str) -> String {
    let Some((before, host)) = address.rsplit_once('@') else {
        return address.into();
    };
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    match before.split_once("://") {
        Some((scheme, _)) if scheme.chars().all(is_of_scheme) => format!("{scheme}://{host}"),
        _ => host.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{collect_certificates, deduplicate_names, has_secret, strip_user};
    use crate::image::CaCertificate;
    use std::collections::BTreeSet;
    use std::fs;

    #[test]
    fn authorities_of_the_same_name_are_numbered_and_none_is_dropped() {
        let certificate = |name: &str, pem: &str| CaCertificate {
            name: name.into(),
            pem: pem.into(),
        };
        let found = vec![
            certificate("root.crt", "b"),
            certificate("root-2.crt", "d"),
            certificate("root.crt", "a"),
            certificate("root.crt", "c"),
            certificate("root.crt", "a"),
        ];
        let mut reversed = found.clone();
        reversed.reverse();
        let found = deduplicate_names(found);
        let named: Vec<_> = found
            .iter()
            .map(|c| (c.name.as_str(), c.pem.as_slice()))
            .collect();
        assert_eq!(
            named,
            [
                ("root-2.crt", b"d".as_slice()),
                ("root-3.crt", b"b"),
                ("root-4.crt", b"c"),
                ("root.crt", b"a"),
            ]
        );
        // The image's digest does not depend on the order in which folders are read.
        let reversed: Vec<_> = deduplicate_names(reversed)
            .into_iter()
            .map(|c| c.name)
            .collect();
        assert_eq!(
            reversed,
            found.into_iter().map(|c| c.name).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_proxy_has_no_user_unless_the_variable_is_named() {
        for (address, expected) in [
            ("http://u:secret@proxy:3128/", "http://proxy:3128/"),
            ("socks5h://secret@[::1]:1080", "socks5h://[::1]:1080"),
            ("http://u:secret/se@cret@proxy:3128", "http://proxy:3128"),
            ("u:secret@proxy:3128", "proxy:3128"),
            ("u:secret://x@proxy:3128", "proxy:3128"),
            ("http://proxy:3128", "http://proxy:3128"),
        ] {
            assert_eq!(strip_user(address), expected);
            assert_eq!(
                has_secret("http_proxy", address, &BTreeSet::new()),
                address.contains('@')
            );
        }
        let address = "http://u:secret@proxy";
        for named in ["HTTP_PROXY", "http_proxy"] {
            let named = BTreeSet::from([named.to_owned()]);
            assert!(!has_secret("http_proxy", address, &named));
            assert!(has_secret("https_proxy", address, &named));
        }
        assert!(!has_secret("no_proxy", "a@b", &BTreeSet::new()));
    }

    #[test]
    fn only_certificates_are_taken_and_renamed_to_crt() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deep")).unwrap();
        fs::write(
            folder.path().join("deep/company.pem"),
            "x\n-----BEGIN CERTIFICATE-----\nx",
        )
        .unwrap();
        fs::write(folder.path().join("key.pem"), "-----BEGIN PRIVATE KEY-----").unwrap();
        fs::write(
            folder.path().join("readme.txt"),
            "-----BEGIN CERTIFICATE-----",
        )
        .unwrap();
        let mut found = Vec::new();
        collect_certificates(folder.path(), &mut found);
        assert_eq!(
            found.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
            ["company.crt"]
        );
    }
}
