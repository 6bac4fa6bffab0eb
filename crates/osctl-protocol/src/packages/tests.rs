use super::{
    LockedPackage, LockedPackages, PackageChange, PackageKind, PackageLists, PackageLock,
    check_package, installer_files,
};
use serde_json::{Value, json};

#[test]
fn a_package_is_a_name_with_an_optional_version() {
    for (kind, package, name, version) in [
        (PackageKind::Pip, "polars", "polars", None),
        (PackageKind::Pip, "polars==1.35.2", "polars", Some("1.35.2")),
        (
            PackageKind::Pip,
            "torch==2.9.1+cpu",
            "torch",
            Some("2.9.1+cpu"),
        ),
        (PackageKind::Pip, "a==1!2.0.post1", "a", Some("1!2.0.post1")),
        (PackageKind::Pip, "pandas[excel,aws]", "pandas", None),
        (
            PackageKind::Pip,
            "pandas[excel]==3.0",
            "pandas",
            Some("3.0"),
        ),
        (
            PackageKind::Pip,
            "Zope.Interface_x",
            "Zope.Interface_x",
            None,
        ),
        (PackageKind::Apt, "g++", "g++", None),
        (
            PackageKind::Apt,
            "libstdc++6=14.2.0-19",
            "libstdc++6",
            Some("14.2.0-19"),
        ),
        (
            PackageKind::Apt,
            "jq=1:1.7~rc1+b1",
            "jq",
            Some("1:1.7~rc1+b1"),
        ),
        (PackageKind::Npm, "cowsay", "cowsay", None),
        (PackageKind::Npm, "cowsay@1.6.0", "cowsay", Some("1.6.0")),
        (PackageKind::Npm, "@types/node", "@types/node", None),
        (
            PackageKind::Npm,
            "@types/node@24.0.0-rc.1",
            "@types/node",
            Some("24.0.0-rc.1"),
        ),
    ] {
        assert_eq!(check_package(kind, package), Ok(()), "{package}");
        assert_eq!(kind.split(package), (name, version), "{package}");
    }
}

#[test]
fn options_addresses_paths_and_shell_text_are_refused() {
    let long = "a".repeat(200);
    for package in [
        "",
        " ",
        "-",
        "--pre",
        "-r",
        "-rx.txt",
        "a b",
        "a\n",
        "a\nRUN x",
        "a;b",
        "a&&b",
        "$(x)",
        "`x`",
        "a|b",
        "a>b",
        "a#b",
        "'a'",
        "\"a\"",
        "a\\",
        "a\0",
        "a\u{1b}[0m",
        "ä",
        "a\u{202e}b",
        "../a",
        "./a",
        "/etc/passwd",
        "a/b",
        "~a",
        "~/a",
        ".",
        "..",
        ".a",
        "a,b",
        "a:b",
        "http://h/a",
        "https://h/a.whl",
        "git+https://h/a",
        "a @ https://h/a",
        "a@https://h/a",
        "file:///a",
        "file:a",
        "npm:b",
        "github:a/b",
        "a@npm:b",
        "a@latest",
        "a@^1",
        "a@*",
        "a@",
        "a==",
        "a==*",
        "a==1.*",
        "a==1,<2",
        "a>=1",
        "a~=1",
        "a===1 ",
        "a== 1",
        "a==1;x",
        "a==--pre",
        "a==-1",
        "a=",
        "a=-1",
        "a=1/trixie",
        "a[",
        "a[]",
        "a[b",
        "a]",
        "a[b]c",
        "a[b]c==1",
        "a[b][c]",
        "a[-e]",
        "[a]",
        "@",
        "@/",
        "@a",
        "@a/",
        "@/a",
        "@a/b/c",
        "@-a/b",
        "@a/../b",
        "@a/b@",
        "@a/b@latest",
        "@../b",
        &long,
    ] {
        for kind in PackageKind::ALL_KINDS {
            let refused = check_package(kind, package);
            assert!(refused.is_err(), "{kind}: {package}");
            let message = refused.unwrap_err();
            assert!(!message.contains(['\n', '\u{1b}', '\0']), "{message}");
        }
    }
    for (kind, package) in [
        (PackageKind::Apt, "Jq"),
        (PackageKind::Apt, "jq==1"),
        (PackageKind::Apt, "jq/trixie"),
        (PackageKind::Apt, "jq[x]"),
        (PackageKind::Apt, "a_b"),
        (PackageKind::Apt, "jq@1"),
        (PackageKind::Apt, "jq:arm64"),
        (PackageKind::Pip, "a=1"),
        (PackageKind::Pip, "a@1"),
        (PackageKind::Pip, "a-"),
        (PackageKind::Pip, "a+b"),
        (PackageKind::Pip, "@a/b"),
        (PackageKind::Npm, "a=1"),
        (PackageKind::Npm, "a==1"),
        (PackageKind::Npm, "a[b]"),
        (PackageKind::Npm, "a@b"),
        (PackageKind::Npm, "_a"),
    ] {
        assert!(check_package(kind, package).is_err(), "{kind}: {package}");
    }
}

#[test]
fn the_project_file_holds_lists_of_packages_alone() {
    let read = PackageLists::from_project_file;
    let text = "body: x\npackages:\n  apt: [jq]\n  pip:\n    - polars # fast\n    - 'pandas[excel]'\n  npm:\n";
    let lists = read(text).unwrap();
    assert_eq!(
        (lists.apt.len(), lists.pip.len(), lists.npm.len()),
        (1, 2, 0)
    );
    for empty in ["", "# x\n", "body: x\n", "packages:\n", "packages: {}\n"] {
        assert_eq!(read(empty).unwrap(), PackageLists::default(), "{empty}");
    }
    for text in [
        "packages: {gem: [x]}",
        "packages: [jq]",
        "packages: jq",
        "packages: {apt: jq}",
        "packages: {apt: [[jq]]}",
        "packages: {apt: [{jq: 1}]}",
        "packages: {pip: [--index-url]}",
        "packages: {pip: [a, A]}",
        "packages: {pip: [a_b, a.b==1]}",
        "packages: {apt: [jq, jq=1]}",
        "packages: {apt: &a [jq], npm: *a}",
        "packages: {apt: [a]}\npackages: {apt: [b]}",
        &format!(
            "packages: {{apt: [{}]}}",
            (0..300).map(|i| format!("a{i},")).collect::<String>()
        ),
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}

fn lock(kind: PackageKind, change: impl Fn(&mut Value)) -> Result<PackageLock, String> {
    let hash = format!("sha256:{}", "0a".repeat(32));
    let mut lock = match kind {
        PackageKind::Pip => {
            json!({"requested": ["a"], "packages": [{"name": "a", "version": "1", "hashes": [hash]}]})
        }
        PackageKind::Apt => {
            json!({"requested": ["a"], "packages": [{"name": "a", "version": "1"}]})
        }
        PackageKind::Npm => {
            json!({"requested": ["a"], "packages": [{"name": "a", "version": "1"}], "lockfile": {
            "packages": {"": {}, "node_modules/a": {"version": "1", "integrity": "sha512-x"}}}})
        }
    };
    change(&mut lock);
    PackageLock::parse(json!({kind.as_str(): lock}).to_string().as_bytes())
}

#[test]
fn a_lock_with_anything_but_names_versions_and_hashes_is_refused() {
    for kind in PackageKind::ALL_KINDS {
        lock(kind, |_| {}).unwrap();
    }
    let refused: &[(PackageKind, &str, Value)] = &[
        (PackageKind::Pip, "/requested/0", json!("-e")),
        (PackageKind::Pip, "/packages/0/name", json!("a b")),
        (PackageKind::Pip, "/packages/0/name", json!("a==1")),
        (PackageKind::Pip, "/packages/0/name", json!("a[b]")),
        (
            PackageKind::Pip,
            "/packages/0/version",
            json!("1 --hash=sha256:00"),
        ),
        (PackageKind::Pip, "/packages/0/version", json!("1\n-e .")),
        (PackageKind::Pip, "/packages/0/version", json!("")),
        (PackageKind::Pip, "/packages/0/hashes", json!([])),
        (PackageKind::Pip, "/packages/0/hashes/0", json!("md5:00")),
        (
            PackageKind::Pip,
            "/packages/0/hashes/0",
            json!("sha256:0\n"),
        ),
        (PackageKind::Pip, "/packages/0/url", json!("https://h/")),
        (PackageKind::Pip, "/lockfile", json!({})),
        (PackageKind::Apt, "/packages/0/version", json!("1 -o x=y")),
        (PackageKind::Apt, "/packages/0/hashes", json!(["x"])),
        (PackageKind::Npm, "/lockfile", Value::Null),
        (PackageKind::Npm, "/lockfile", json!({})),
        (
            PackageKind::Npm,
            "/lockfile/packages/node_modules~1a/resolved",
            json!("https://h/a.tgz"),
        ),
        (
            PackageKind::Npm,
            "/lockfile/packages/node_modules~1a/link",
            json!(true),
        ),
        (
            PackageKind::Npm,
            "/lockfile/packages/node_modules~1a/integrity",
            Value::Null,
        ),
        (
            PackageKind::Npm,
            "/lockfile/packages/..~1a",
            json!({"integrity": "sha512-x"}),
        ),
        (
            PackageKind::Npm,
            "/lockfile/packages/node_modules~1..~1a",
            json!({"integrity": "sha512-x"}),
        ),
    ];
    for (kind, place, value) in refused {
        let set = |lock: &mut Value| match lock.pointer_mut(place) {
            Some(found) => *found = value.clone(),
            None => {
                let (parent, key) = place.rsplit_once('/').unwrap();
                let key = key.replace("~1", "/");
                lock.pointer_mut(parent).unwrap()[key.as_str()] = value.clone();
            }
        };
        assert!(lock(*kind, set).is_err(), "{kind} {place} {value}");
    }
    assert!(PackageLock::parse(b"{\"gem\": {\"requested\": [], \"packages\": []}}").is_err());
    assert!(PackageLock::parse(&b"[".repeat(100_000)).is_err());
}

#[test]
fn a_lock_counts_only_for_the_packages_that_it_was_made_for() {
    let lock = lock(PackageKind::Apt, |_| {}).unwrap();
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(lock.of(PackageKind::Apt, &words("a")).is_some());
    for other in ["a=1", "b", "a b", ""] {
        assert!(
            lock.of(PackageKind::Apt, &words(other)).is_none(),
            "{other}"
        );
    }
    assert!(lock.of(PackageKind::Pip, &words("a")).is_none());
}

#[test]
fn the_installers_get_exact_versions_with_hashes() {
    let hash = format!("sha256:{}", "0a".repeat(32));
    let locked = LockedPackages {
        requested: vec!["a".into()],
        packages: vec![LockedPackage {
            name: "a".into(),
            version: "1".into(),
            hashes: vec![hash.clone()],
        }],
        lockfile: None,
    };
    let files = installer_files(PackageKind::Pip, &locked.requested, Some(&locked));
    assert_eq!(
        files["pip/packages.txt"],
        format!("a==1 --hash={hash}\n").into_bytes()
    );
    let files = installer_files(PackageKind::Apt, &["jq".into(), "fd-find".into()], None);
    assert_eq!(files["apt/packages.txt"], b"jq\nfd-find\n");
    let files = installer_files(PackageKind::Npm, &["a".into(), "@b/c@1.0.0".into()], None);
    let manifest: Value = serde_json::from_slice(&files["npm/package.json"]).unwrap();
    assert_eq!(manifest["dependencies"], json!({"a": "*", "@b/c": "1.0.0"}));
}

#[test]
fn a_change_is_read_from_the_command_that_applies_it() {
    let packages = || vec!["a".into(), "it's".into()];
    for (change, shown) in [
        (
            PackageChange::Add {
                kind: PackageKind::Pip,
                packages: packages(),
            },
            "osctl add a it's",
        ),
        (
            PackageChange::Add {
                kind: PackageKind::Npm,
                packages: vec!["@a/b".into()],
            },
            "osctl add --npm @a/b",
        ),
        (
            PackageChange::Remove {
                kind: None,
                packages: packages(),
            },
            "osctl remove a it's",
        ),
        (PackageChange::Lock, "osctl packages lock"),
        (PackageChange::List, "osctl packages"),
    ] {
        let command = change.inside_command();
        assert_eq!(change.osctl_command(), shown);
        assert_eq!(PackageChange::from_inside_command(&command), Some(change));
        for other in [format!("{command}; rm x"), format!("{command} '\"List\"'")] {
            assert_eq!(PackageChange::from_inside_command(&other), None);
        }
    }
}
