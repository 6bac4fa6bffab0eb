//! Trials of the browser when memory runs out: the kernel of the host kills it first, and it restarts.

use crate::desktop::{instance, is_ready};
use crate::harness::{Api, Home};
use crate::pages::page;
use crate::trials;
use serde_json::{Value, json};

trials![
    the_browser_is_killed_before_the_companion_and_the_kernel,
    a_page_that_uses_all_memory_ends_alone,
    a_browser_killed_for_its_memory_restarts_with_its_profile,
];

/// Reads the text of a page with the tool that agents use.
pub(crate) fn read(home: &Home, url: &str) -> (i32, String) {
    let url = format!("url={url}");
    let ran = home.run([
        "mcp",
        "call",
        "os",
        "navigate_and_get_all_visible_text",
        &url,
        // A page that uses all memory may take long.
        "timeout=300",
    ]);
    (ran.code, ran.stdout + &ran.stderr)
}

/// Waits until the browser has written the page's local storage to disk.
pub(crate) fn wait_until_stored(api: &Api, url: &str) {
    let (origin, _) = url.rsplit_once('/').unwrap();
    let folder = "/root/host/.browser/Default/Local Storage/leveldb";
    let code = format!(
        "import glob; any(b'_{origin}\\x00\\x01kept' in open(f, 'rb').read() for f in glob.glob('{folder}/*.log'))"
    );
    api.until("the write of the local storage", |api| {
        (api.exec(&code)["result"] == "True").then_some(())
    });
}

/// The OOM score adjustments of the processes, by kind.
fn scores(api: &Api) -> Value {
    let code = r#"
import glob, json
def scores():
    found = {"companion": [], "guard": [], "kernel": [], "browser": [], "renderer": []}
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            words = open(f"{folder}/cmdline").read().replace("\0", " ")
            score = int(open(f"{folder}/oom_score_adj").read())
        except OSError:
            continue
        if "/chromium/" in words.split(" ")[0]:
            kind = "renderer" if "--type=renderer" in words else "browser" if "--type=" not in words else None
        else:
            kinds = {" companion ": "companion", " reaper ": "guard", "/kernel --template": "kernel"}
            kind = next((kind for part, kind in kinds.items() if part in f" {words} "), None)
        if kind:
            found[kind].append(score)
    return json.dumps(found)
print(scores())
"#;
    serde_json::from_str(api.exec(code)["stdout"].as_str().unwrap()).unwrap()
}

fn the_browser_is_killed_before_the_companion_and_the_kernel() {
    let api = instance().api();
    assert_eq!(api.post("/display/browser", &Value::Null).status, 200);
    let (least, found) = api.until("the browser's scores", |api| {
        let found = scores(api);
        let of = |kind: &str| {
            let all = found[kind].as_array().unwrap().iter();
            all.map(|score| score.as_i64().unwrap()).collect::<Vec<_>>()
        };
        let browser = of("browser").into_iter().min()?;
        let renderer = of("renderer").into_iter().min()?;
        // The browser sets its own score after its start, and the companion raises the score then.
        (browser >= 100 && renderer > browser).then_some((browser, found))
    });
    let guards = found["guard"].as_array().unwrap();
    assert!(
        !guards.is_empty() && guards.iter().all(|score| score == 0),
        "{found}"
    );
    for kind in ["companion", "kernel"] {
        let all = found[kind].as_array().unwrap();
        assert!(!all.is_empty(), "{found}");
        assert!(
            all.iter().all(|score| score.as_i64() < Some(least)),
            "{found}"
        );
    }
}

fn a_page_that_uses_all_memory_ends_alone() {
    let home = instance();
    let api = home.api();
    let eats = page(home, "eats");
    let page = eats.replace("eats", "page");
    api.exec("kept = 'before'");
    let before = api.get("/status").json()["kernel"]["generation"].clone();
    let chromium = "import subprocess; subprocess.run(['pgrep', '-o', '-x', 'chromium'], capture_output=True, text=True).stdout";
    let browser = api.exec(chromium)["result"].clone();
    let (code, text) = read(home, &eats);
    assert!(
        code != 0 && text.contains("the page has crashed"),
        "{code} {text}"
    );
    // The kernel, the server of the pages and the browser process still run.
    assert_eq!(api.exec("kept")["result"], "'before'");
    assert_eq!(api.get("/status").json()["kernel"]["generation"], before);
    assert_eq!(api.exec(chromium)["result"], browser);
    let (code, text) = read(home, &page);
    assert!(code == 0 && text.contains("shown"), "{code} {text}");
}

fn a_browser_killed_for_its_memory_restarts_with_its_profile() {
    let home = instance();
    let api = home.api();
    let (keeps, loud) = (page(home, "keeps"), page(home, "press"));
    let (code, text) = read(home, &keeps);
    assert!(code == 0 && text.contains("a stranger"), "{code} {text}");
    wait_until_stored(&api, &keeps);
    let loud = format!("url={loud}");
    let navigate = ["mcp", "call", "browser-use", "browser_navigate", &loud];
    home.ok(navigate);
    // As the out-of-memory killer does: SIGKILL for the browser and its children.
    let kill = json!({"code": "import subprocess; subprocess.run(['pkill', '-9', '-x', 'chromium'], check=True)"});
    assert_eq!(api.exec_with(kill)["status"], "completed");
    api.until("the end of the browser", |api| {
        (!is_ready(api, "chromium")).then_some(())
    });
    let (code, text) = read(home, &keeps);
    assert!(
        code == 0 && text.contains("somebody who has been here"),
        "{code} {text}"
    );
    home.ok(navigate);
    let state = home
        .ok(["mcp", "call", "browser-use", "browser_get_state"])
        .stdout;
    assert!(state.contains("press me"), "{state}");
    api.connect().send("DELETE", "/display/browser", &[], b"");
}
