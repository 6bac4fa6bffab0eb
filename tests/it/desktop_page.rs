//! Trials of the desktop's page in a user's browser: the clipboard and the size of the window, also after a lost
//! connection.

use crate::desktop::{instance, put};
use crate::desktop_user::{CONNECTED, open_page, restore_size, wait_until_screen_fits};
use crate::harness::Api;
use crate::trials;
use crate::web::Page;
use serde_json::{Value, json};

trials![
    copied_text_is_synchronized_both_ways,
    the_screen_follows_the_window,
    a_page_whose_scripts_fail_to_load_is_loaded_again,
];

/// Copies a text in the container.
#[track_caller]
fn copy_inside(api: &Api, text: &str) {
    let copied = put(api, "/display/clipboard", &json!({"text": text}));
    assert_eq!(copied.status, 200);
}

fn container_clipboard(api: &Api) -> Value {
    api.get("/display/clipboard").json()["text"].clone()
}

/// The clipboard of the browser on the host.
fn host_clipboard(page: &mut Page) -> Value {
    page.value("navigator.clipboard.readText()")
}

#[track_caller]
fn wait_for_host_clipboard(api: &Api, page: &mut Page, text: &str) {
    api.until(text, |_| (host_clipboard(page) == text).then_some(()));
}

#[track_caller]
fn wait_for_container_clipboard(api: &Api, text: &str) {
    api.until(text, |api| (container_clipboard(api) == text).then_some(()));
}

/// Kills a process that the page needs and waits until the page has lost its connection.
#[track_caller]
fn cut(api: &Api, page: &mut Page, process: &str) {
    page.value("document.documentElement.dataset.connected = 'before'");
    api.exec(&format!(
        "import subprocess; subprocess.run(['pkill', '-9', '-x', '{process}'], check=True)"
    ));
    page.until("document.documentElement.dataset.connected !== 'before'");
}

fn copied_text_is_synchronized_both_ways() {
    let home = instance();
    let api = home.api();
    let comes = "window.dispatchEvent(new Event('focus'))";
    copy_inside(&api, "von früher");
    let mut page = open_page(home);
    // The page shows text that was copied before it opened, and does not overwrite the host's clipboard.
    page.until("document.getElementById('text').value === 'von früher'");
    assert_eq!(host_clipboard(&mut page), "");
    // VNC's Latin-1 clipboard cannot distinguish these two texts.
    for text in ["von innen: 日本", "von innen: ελ"] {
        copy_inside(&api, text);
        wait_for_host_clipboard(&api, &mut page, text);
    }
    page.value("navigator.clipboard.writeText('von außen: Ж')");
    page.value(comes);
    wait_for_container_clipboard(&api, "von außen: Ж");
    // Text that is copied inside while the page has no focus is delivered later and is not replaced by older text of
    // the host.
    page.value("void (navigator.clipboard.writeText = async () => { throw new Error() })");
    copy_inside(&api, "unterdessen");
    page.until("document.getElementById('text').value === 'unterdessen'");
    assert_eq!(host_clipboard(&mut page), "von außen: Ж");
    page.value("delete navigator.clipboard.writeText");
    page.value(comes);
    wait_for_host_clipboard(&api, &mut page, "unterdessen");
    assert_eq!(container_clipboard(&api), "unterdessen");
    // Text in the dialog stays when other text is copied inside.
    page.value("document.getElementById('copy').click()");
    page.until("document.getElementById('clipboard').open");
    page.value("document.getElementById('text').value = 'geschrieben'");
    copy_inside(&api, "daneben");
    wait_for_host_clipboard(&api, &mut page, "daneben");
    page.value("document.querySelector('button[value=copy]').click()");
    wait_for_container_clipboard(&api, "geschrieben");
    wait_for_host_clipboard(&api, &mut page, "geschrieben");
    // The clipboard of a killed X server is lost; the new server receives the text of the host.
    cut(&api, &mut page, "Xvfb");
    page.until(CONNECTED);
    wait_for_container_clipboard(&api, "geschrieben");
    assert_eq!(host_clipboard(&mut page), "geschrieben");
    copy_inside(&api, "danach: 日本");
    wait_for_host_clipboard(&api, &mut page, "danach: 日本");
}

fn the_screen_follows_the_window() {
    let home = instance();
    let api = home.api();
    let mut page = open_page(home);
    wait_until_screen_fits(&api, &mut page);
    page.resize((900, 600));
    wait_until_screen_fits(&api, &mut page);
    cut(&api, &mut page, "x11vnc");
    page.until(CONNECTED);
    page.resize((1000, 650));
    wait_until_screen_fits(&api, &mut page);
    // The window also changes without a connection, and then with a new X server.
    cut(&api, &mut page, "Xvfb");
    page.resize((800, 560));
    page.until(CONNECTED);
    wait_until_screen_fits(&api, &mut page);
    drop(page);
    restore_size(&api);
}

fn a_page_whose_scripts_fail_to_load_is_loaded_again() {
    let home = instance();
    let mut page = open_page(home);
    page.block(&["*/novnc/core/rfb.js"]);
    page.value("location.reload()");
    page.until("document.getElementById('state').textContent.startsWith('loading failed')");
    page.block(&[]);
    page.until(CONNECTED);
}
