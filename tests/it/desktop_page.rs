//! The desktop's page in a person's browser: the clipboard and the window's size, also after a
//! connection was lost.

use crate::desktop::{instance, put};
use crate::desktop_person::{CONNECTED, restore_size, until_followed, visit};
use crate::harness::Api;
use crate::trials;
use crate::web::Page;
use serde_json::{Value, json};

trials![what_is_copied_goes_both_ways, the_screen_follows_the_window,];

/// Copies a text inside.
#[track_caller]
fn copy_inside(api: &Api, text: &str) {
    let copied = put(api, "/display/clipboard", &json!({"text": text}));
    assert_eq!(copied.status, 200);
}

fn inside(api: &Api) -> Value {
    api.get("/display/clipboard").json()["text"].clone()
}

/// What a person would paste in another window than the page's.
fn here(page: &mut Page) -> Value {
    page.value("navigator.clipboard.readText()")
}

#[track_caller]
fn until_here(api: &Api, page: &mut Page, text: &str) {
    api.until(text, |_| (here(page) == text).then_some(()));
}

#[track_caller]
fn until_inside(api: &Api, text: &str) {
    api.until(text, |api| (inside(api) == text).then_some(()));
}

/// Ends something that the page needs, from whose end on it has no connection.
#[track_caller]
fn cut(api: &Api, page: &mut Page, process: &str) {
    page.value("document.documentElement.dataset.connected = 'before'");
    api.exec(&format!(
        "import subprocess; subprocess.run(['pkill', '-9', '-x', '{process}'], check=True)"
    ));
    page.until("document.documentElement.dataset.connected !== 'before'");
}

fn what_is_copied_goes_both_ways() {
    let home = instance();
    let api = home.api();
    let comes = "window.dispatchEvent(new Event('focus'))";
    copy_inside(&api, "von früher");
    let mut page = visit(home);
    // What was there before the person came is shown to them, and takes nothing from them.
    page.until("document.getElementById('text').value === 'von früher'");
    assert_eq!(here(&mut page), "");
    // These two are the same to VNC's protocol.
    for text in ["von innen: 日本", "von innen: ελ"] {
        copy_inside(&api, text);
        until_here(&api, &mut page, text);
    }
    page.value("navigator.clipboard.writeText('von außen: Ж')");
    page.value(comes);
    until_inside(&api, "von außen: Ж");
    // What is copied inside while the person is elsewhere waits for them, and is not lost for what was
    // copied before.
    page.value("void (navigator.clipboard.writeText = async () => { throw new Error() })");
    copy_inside(&api, "unterdessen");
    page.until("document.getElementById('text').value === 'unterdessen'");
    assert_eq!(here(&mut page), "von außen: Ж");
    page.value("delete navigator.clipboard.writeText");
    page.value(comes);
    until_here(&api, &mut page, "unterdessen");
    assert_eq!(inside(&api), "unterdessen");
    // What is written in the dialog stays, whatever is copied inside meanwhile.
    page.value("document.getElementById('copy').click()");
    page.until("document.getElementById('clipboard').open");
    page.value("document.getElementById('text').value = 'geschrieben'");
    copy_inside(&api, "daneben");
    until_here(&api, &mut page, "daneben");
    page.value("document.querySelector('button[value=copy]').click()");
    until_inside(&api, "geschrieben");
    until_here(&api, &mut page, "geschrieben");
    // With the screen goes what was copied there: what is here comes to the new one.
    cut(&api, &mut page, "Xvfb");
    page.until(CONNECTED);
    until_inside(&api, "geschrieben");
    assert_eq!(here(&mut page), "geschrieben");
    copy_inside(&api, "danach: 日本");
    until_here(&api, &mut page, "danach: 日本");
}

fn the_screen_follows_the_window() {
    let home = instance();
    let api = home.api();
    let mut page = visit(home);
    until_followed(&api, &mut page);
    page.resize((900, 600));
    until_followed(&api, &mut page);
    cut(&api, &mut page, "x11vnc");
    page.until(CONNECTED);
    page.resize((1000, 650));
    until_followed(&api, &mut page);
    // Also when it changes while there is no connection, to a new screen at last.
    cut(&api, &mut page, "Xvfb");
    page.resize((800, 560));
    page.until(CONNECTED);
    until_followed(&api, &mut page);
    drop(page);
    restore_size(&api);
}
