//! The browser when memory runs out: it goes before anything else does, and comes back.

use crate::desktop::{instance, is_ready};
use crate::harness::{Api, Home};
use crate::pages::page;
use crate::trials;
use serde_json::{Value, json};

trials![
    the_browser_goes_before_the_companion_and_the_kernel,
    a_page_that_takes_all_memory_ends_alone,
    a_browser_that_is_ended_for_its_memory_comes_back_with_its_profile,
];

/// What a page says, read as an agent reads it.
pub(crate) fn read(home: &Home, url: &str) -> (i32, String) {
    let url = format!("url={url}");
    let ran = home.run([
        "mcp",
        "call",
        "os",
        "navigate_and_get_all_visible_text",
        &url,
        // A page that takes all memory may take long to.
        "timeout=300",
    ]);
    (ran.code, ran.stdout + &ran.stderr)
}

/// Waits until what that page keeps is on the disk, beside what earlier ones keep there.
pub(crate) fn until_kept(api: &Api, url: &str) {
    let (origin, _) = url.rsplit_once('/').unwrap();
    let folder = "/root/host/.browser/Default/Local Storage/leveldb";
    let code = format!(
        "import glob; any(b'_{origin}\\x00\\x01kept' in open(f, 'rb').read() for f in glob.glob('{folder}/*.log'))"
    );
    api.until("what it keeps, on the disk", |api| {
        (api.exec(&code)["result"] == "True").then_some(())
    });
}

/// How readily the system ends each process when memory runs out, by what it is.
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

fn the_browser_goes_before_the_companion_and_the_kernel() {
    let api = instance().api();
    assert_eq!(api.post("/display/browser", &Value::Null).status, 200);
    let (least, told) = api.until("the browser's scores", |api| {
        let told = scores(api);
        let of = |kind: &str| {
            let all = told[kind].as_array().unwrap().iter();
            all.map(|score| score.as_i64().unwrap()).collect::<Vec<_>>()
        };
        let browser = of("browser").into_iter().min()?;
        let renderer = of("renderer").into_iter().min()?;
        // It sets its own once it runs, and is made readier then.
        (browser >= 100 && renderer > browser).then_some((browser, told))
    });
    let guards = told["guard"].as_array().unwrap();
    assert!(
        !guards.is_empty() && guards.iter().all(|score| score == 0),
        "{told}"
    );
    for kind in ["companion", "kernel"] {
        let all = told[kind].as_array().unwrap();
        assert!(!all.is_empty(), "{told}");
        assert!(
            all.iter().all(|score| score.as_i64() < Some(least)),
            "{told}"
        );
    }
}

fn a_page_that_takes_all_memory_ends_alone() {
    let home = instance();
    let api = home.api();
    let eats = page(home, "eats");
    let page = eats.replace("eats", "page");
    api.exec("kept = 'before'");
    let before = api.get("/status").json()["kernel"]["generation"].clone();
    let chromium = "import subprocess; subprocess.run(['pgrep', '-o', '-x', 'chromium'], capture_output=True, text=True).stdout";
    let browser = api.exec(chromium)["result"].clone();
    let (code, said) = read(home, &eats);
    assert!(
        code != 0 && said.contains("the page has crashed"),
        "{code} {said}"
    );
    // The kernel, its pages' server and the browser itself were not touched.
    assert_eq!(api.exec("kept")["result"], "'before'");
    assert_eq!(api.get("/status").json()["kernel"]["generation"], before);
    assert_eq!(api.exec(chromium)["result"], browser);
    let (code, said) = read(home, &page);
    assert!(code == 0 && said.contains("shown"), "{code} {said}");
}

fn a_browser_that_is_ended_for_its_memory_comes_back_with_its_profile() {
    let home = instance();
    let api = home.api();
    let (keeps, loud) = (page(home, "keeps"), page(home, "press"));
    let (code, said) = read(home, &keeps);
    assert!(code == 0 && said.contains("a stranger"), "{code} {said}");
    until_kept(&api, &keeps);
    let loud = format!("url={loud}");
    let navigate = ["mcp", "call", "browser-use", "browser_navigate", &loud];
    home.ok(navigate);
    // As the system ends it: without a word, and with all that it had started.
    let kill = json!({"code": "import subprocess; subprocess.run(['pkill', '-9', '-x', 'chromium'], check=True)"});
    assert_eq!(api.exec_with(kill)["status"], "completed");
    api.until("its end", |api| (!is_ready(api, "chromium")).then_some(()));
    let (code, said) = read(home, &keeps);
    assert!(
        code == 0 && said.contains("somebody who has been here"),
        "{code} {said}"
    );
    home.ok(navigate);
    let state = home
        .ok(["mcp", "call", "browser-use", "browser_get_state"])
        .stdout;
    assert!(state.contains("press me"), "{state}");
    api.connect().send("DELETE", "/display/browser", &[], b"");
}
