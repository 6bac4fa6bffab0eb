//! Trials of files over HTTP: content is preserved, broken uploads leave nothing, and paths cannot escape.

use crate::archives::{finished, header, padded};
use crate::harness::{Api, Home, Response, shared};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use tar::EntryType;

trials![
    a_file_keeps_its_mode_and_its_time,
    a_replaced_file_keeps_its_rights_and_the_link_to_it,
    ranges_are_served_and_a_changed_file_is_sent_whole,
    a_file_without_a_length_is_read_to_its_end,
    folders_are_made_listed_by_pages_and_removed,
    names_that_are_not_utf8_have_an_exact_form,
    paths_that_climb_are_refused,
    special_files_are_refused_without_waiting,
    a_broken_upload_leaves_the_old_file_and_nothing_else,
    an_upload_resumes_where_it_was_cut,
    a_full_disk_is_reported_and_leaves_the_old_file,
];

pub(crate) const TAR: (&str, &str) = ("Content-Type", "application/x-tar");

pub(crate) fn put(api: &Api, path: &str, body: &[u8]) -> Response {
    api.connect().send("PUT", path, &[], body)
}

/// Evaluates a Python expression inside; returns its value as JSON.
#[track_caller]
pub(crate) fn inside(api: &Api, expression: &str) -> Value {
    let code = format!("import glob, hashlib, json, os, stat\nprint(json.dumps({expression}))");
    let reply = api.exec(&code);
    assert_eq!(reply["status"], "completed", "{reply}");
    serde_json::from_str(reply["stdout"].as_str().unwrap()).unwrap()
}

/// Creates an empty folder of one trial in the shared files; returns its path inside.
pub(crate) fn folder(api: &Api, name: &str) -> String {
    let code = format!(
        "import os, shutil\nshutil.rmtree('/root/host/{name}', True)\nos.mkdir('/root/host/{name}')"
    );
    assert_eq!(api.exec(&code)["status"], "completed");
    format!("/root/host/{name}")
}

fn a_file_keeps_its_mode_and_its_time() {
    let api = shared().api();
    let folder = folder(&api, "files-back");
    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let made = put(
        &api,
        &format!("/files{folder}/f?mode=4751&mtime=1234567890.123456789"),
        &content,
    );
    assert_eq!(made.status, 201, "{:?}", made.json());
    let path = format!("{folder}/f");
    assert_eq!(
        made.json(),
        json!({"status": "completed", "path": path, "bytes": 300_000, "files": 1, "folders": 0, "links": 0})
    );
    let state = format!("(lambda s: [oct(s.st_mode), s.st_mtime_ns])(os.stat('{path}'))");
    assert_eq!(
        inside(&api, &state),
        json!(["0o104751", 1_234_567_890_123_456_789_u64])
    );
    let got = api.get(&format!("/files{path}"));
    assert_eq!((got.status, got.body == content), (200, true));
    for (name, value) in [
        ("content-type", "application/octet-stream"),
        ("accept-ranges", "bytes"),
        ("last-modified", "Fri, 13 Feb 2009 23:31:30 GMT"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox"),
    ] {
        assert_eq!(got.headers[name], value);
    }
    let entry = api.get(&format!("/files{path}?stat")).json();
    assert_eq!(
        (
            &entry["kind"],
            &entry["size"],
            &entry["mode"],
            &entry["mtime"]
        ),
        (
            &json!("file"),
            &json!(300_000),
            &json!("4751"),
            &json!("1234567890.123456789")
        )
    );
    assert_eq!(put(&api, &format!("/files{path}"), b"").status, 200);
    assert_eq!(api.get(&format!("/files{path}")).body, b"");
}

fn a_replaced_file_keeps_its_rights_and_the_link_to_it() {
    let api = shared().api();
    let folder = folder(&api, "files-replaced");
    let code = format!(
        "import os\nos.chdir('{folder}')\nopen('real', 'w').write('old')\nos.chmod('real', 0o640)\nos.chown('real', 12, 34)\n\
         os.symlink('real', 'link')\nos.symlink('nowhere', 'dangling')"
    );
    api.exec(&code);
    assert_eq!(
        put(&api, &format!("/files{folder}/link"), b"new").status,
        200
    );
    assert_eq!(
        put(&api, &format!("/files{folder}/dangling"), b"own").status,
        201
    );
    let state = inside(
        &api,
        &format!(
            "(lambda s: [os.readlink('{folder}/link'), open('{folder}/real').read(), oct(s.st_mode), s.st_uid, s.st_gid, \
             sorted(os.listdir('{folder}')), os.path.islink('{folder}/dangling')])(os.stat('{folder}/real'))"
        ),
    );
    assert_eq!(
        state,
        json!([
            "real",
            "new",
            "0o100640",
            12,
            34,
            ["dangling", "link", "real"],
            false
        ])
    );
}

fn ranges_are_served_and_a_changed_file_is_sent_whole() {
    let api = shared().api();
    let path = format!("/files{}/f", folder(&api, "files-ranges"));
    put(&api, &path, b"0123456789");
    let ask = |headers: &[(&str, &str)]| api.connect().send("GET", &path, headers, b"");
    let part = ask(&[("Range", "bytes=2-4")]);
    assert_eq!((part.status, part.body.as_slice()), (206, &b"234"[..]));
    assert_eq!(part.headers["content-range"], "bytes 2-4/10");
    assert_eq!(ask(&[("Range", "bytes=-3")]).body, b"789");
    assert_eq!(ask(&[("Range", "bytes=8-100")]).body, b"89");
    let beyond = ask(&[("Range", "bytes=10-")]);
    assert_eq!(beyond.headers["content-range"], "bytes */10");
    assert_eq!(
        beyond.error(),
        (
            416,
            "range".into(),
            "the range starts after the end of the file, which has 10 bytes".into()
        )
    );
    let tag = part.headers["etag"].clone();
    let same = ask(&[("Range", "bytes=2-4"), ("If-Range", &tag)]);
    assert_eq!(same.status, 206);
    put(&api, &path, b"abcdefghij");
    let changed = ask(&[("Range", "bytes=2-4"), ("If-Range", &tag)]);
    assert_eq!(
        (changed.status, changed.body.as_slice()),
        (200, &b"abcdefghij"[..])
    );
}

fn a_file_without_a_length_is_read_to_its_end() {
    let got = shared().api().get("/files/proc/self/status");
    assert_eq!(got.headers.get("content-length"), None);
    assert!(got.body.starts_with(b"Name:\tosctl"), "{got:?}");
}

fn folders_are_made_listed_by_pages_and_removed() {
    let api = shared().api();
    let folder = folder(&api, "files-listed");
    let send = |method: &str, path: &str| api.connect().send(method, path, &[], b"");
    assert_eq!(send("PUT", &format!("/files{folder}/a/b/")).status, 404);
    assert_eq!(
        send("PUT", &format!("/files{folder}/a/b/?parents")).status,
        201
    );
    assert_eq!(send("PUT", &format!("/files{folder}/a/b/")).status, 200);
    for name in ["c", "d", "e"] {
        put(&api, &format!("/files{folder}/a/{name}"), b"xyz");
    }
    api.exec(&format!("os.symlink('/etc/hosts', '{folder}/a/z')"));
    let names = |path: &str| {
        let listing = api.get(&format!("/files{folder}/a{path}")).json();
        let names = listing["entries"].as_array().unwrap().iter();
        let names: Vec<_> = names
            .map(|e| e["name"].as_str().unwrap().to_owned())
            .collect();
        (names.join(" "), listing["more"].as_bool().unwrap())
    };
    assert_eq!(names(""), ("b c d e z".into(), false));
    assert_eq!(names("/?limit=2"), ("b c".into(), true));
    assert_eq!(names("?after=c&limit=2"), ("d e".into(), true));
    assert_eq!(names("?after=d&limit=2"), ("e z".into(), false));
    let listing = api.get(&format!("/files{folder}/a")).json();
    let kinds = [0, 1, 4].map(|at| listing["entries"][at]["kind"].clone());
    assert_eq!(kinds, ["folder", "file", "symlink"]);
    assert_eq!(listing["entries"][4]["target"], "/etc/hosts");

    let full = send("DELETE", &format!("/files{folder}/a"));
    assert_eq!(
        full.error(),
        (
            409,
            "not_empty".into(),
            format!("`{folder}/a` is not empty")
        )
    );
    assert_eq!(send("DELETE", &format!("/files{folder}/a/z")).status, 200);
    assert_eq!(inside(&api, "os.path.exists('/etc/hosts')"), json!(true));
    assert_eq!(
        send("DELETE", &format!("/files{folder}/a?recursive=true")).status,
        200
    );
    assert_eq!(
        send("DELETE", &format!("/files{folder}/a")).error().1,
        "missing_file"
    );
    assert_eq!(
        send("DELETE", "/files/?recursive").error().1,
        "invalid_field"
    );
    assert_eq!(api.get("/files").json()["path"], "/");
    assert_eq!(api.get("/files/").json()["path"], "/");
}

fn names_that_are_not_utf8_have_an_exact_form() {
    let api = shared().api();
    let folder = folder(&api, "files-names");
    let exact = format!("{folder}/%FF%20%C3%BC%0A%23%3F%25");
    assert_eq!(put(&api, &format!("/files{exact}"), b"found").status, 201);
    assert_eq!(
        inside(
            &api,
            &format!("[list(name) for name in os.listdir(b'{folder}')]")
        ),
        json!([b"\xff \xc3\xbc\n#?%".to_vec()])
    );
    let entry = &api.get(&format!("/files{folder}")).json()["entries"][0];
    assert_eq!(entry["name"], "\u{fffd} ü\n#?%");
    assert_eq!(entry["path"], exact);
    assert_eq!(api.get(&format!("/files{exact}")).body, b"found");
}

fn paths_that_climb_are_refused() {
    let api = shared().api();
    for path in [
        "/root/../etc/passwd",
        "/%2e%2e/etc",
        "/root/%2E./x",
        "/a%2f..%2fb",
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            let refused = api
                .connect()
                .send(method, &format!("/files{path}"), &[], b"x");
            let message = format!("`{path}` is not a valid path: the path contains `..`");
            assert_eq!(
                refused.error(),
                (400, "invalid_field".into(), message),
                "{method}"
            );
        }
    }
    let zero = api.get("/files/etc%00/passwd");
    let message = "`/etc%00/passwd` is not a valid path: the path contains a zero byte";
    assert_eq!(zero.error(), (400, "invalid_field".into(), message.into()));
    let long = format!("/files/{}", "n".repeat(256));
    assert_eq!(api.get(&long).error().0, 400);
    let unknown = api.get("/files/etc/hosts?sat");
    assert_eq!(unknown.error().1, "invalid_query");
}

fn special_files_are_refused_without_waiting() {
    let api = shared().api();
    let folder = folder(&api, "files-special");
    let code = format!(
        "import os, socket\nos.chdir('{folder}')\nos.mkfifo('pipe')\nunread = socket.socket(socket.AF_UNIX)\nunread.bind('socket')\nos.symlink('pipe', 'link')"
    );
    assert_eq!(api.exec(&code)["status"], "completed");
    for (path, what) in [
        (format!("{folder}/pipe"), "a named pipe"),
        (format!("{folder}/link"), "a named pipe"),
        (format!("{folder}/socket"), "a socket"),
        ("/dev/null".into(), "a device"),
    ] {
        let expected = (
            409,
            "no_file".into(),
            format!("`{path}` is {what}, not a file"),
        );
        for ask in ["", "?tar"] {
            assert_eq!(api.get(&format!("/files{path}{ask}")).error(), expected);
        }
        assert_eq!(put(&api, &format!("/files{path}"), b"x").error(), expected);
    }
    assert_eq!(
        inside(&api, "stat.S_ISCHR(os.stat('/dev/null').st_mode)"),
        json!(true)
    );
    let over_folder = put(&api, &format!("/files{folder}"), b"x").error();
    let message = format!("`{folder}` is a folder, not a file");
    assert_eq!(over_folder, (409, "no_file".into(), message));
    let through = put(&api, "/files/etc/hosts/x", b"x").error();
    assert_eq!((through.0, through.1.as_str()), (409, "no_folder"));
    let missing = put(&api, &format!("/files{folder}/no/x"), b"x").error();
    let message = format!("there is no `{folder}/no`");
    assert_eq!(missing, (404, "missing_file".into(), message));
    assert_eq!(
        put(&api, &format!("/files{folder}/no/x?parents"), b"x").status,
        201
    );
}

/// Sends the head and the first part of an upload; dropping the connection breaks the upload.
fn begin(api: &Api, path: &str, headers: &str, begin: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(&api.address).unwrap();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n{headers}\r\n\r\n",
        api.address, api.token
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(begin).unwrap();
    stream
}

fn a_broken_upload_leaves_the_old_file_and_nothing_else() {
    let api = shared().api();
    let folder = folder(&api, "files-broken");
    let path = format!("/files{folder}/f");
    put(&api, &path, b"old");
    // The notes contain uploads of all trials; one may disappear during the search.
    let noted = format!("os.popen('grep -lsF {folder}/ /data/uploads/once-* | wc -l').read()");
    let until_on_its_way = |count: usize| {
        let beside = format!("len(glob.glob('{folder}/.f.osctl-once-*'))");
        api.until("the start of the uploads", |api| {
            (inside(api, &beside) == json!(count)).then_some(())
        });
    };
    let uploads = [
        begin(&api, &path, "Content-Length: 5000000", &[b'n'; 1_000_000]),
        begin(&api, &path, "Transfer-Encoding: chunked", b"5\r\nhello\r\n"),
    ];
    until_on_its_way(2);
    assert_eq!(inside(&api, &noted), json!("2\n"));
    drop(uploads);
    api.until("the end of the uploads", |api| {
        let left = inside(api, &format!("[os.listdir('{folder}'), {noted}]"));
        (left == json!([["f"], "0\n"])).then_some(())
    });
    assert_eq!(api.get(&path).body, b"old");

    // Complete members of a broken archive stay; an incomplete member leaves the old file.
    let mut archive = header("whole", EntryType::Regular, 3);
    archive.extend(padded(b"yes"));
    archive.extend(header("f", EntryType::Regular, 1_000_000));
    archive.extend([b'n'; 9000]);
    let uploads = begin(
        &api,
        &format!("/files{folder}"),
        "Content-Type: application/x-tar\r\nContent-Length: 2000000",
        &archive,
    );
    until_on_its_way(1);
    drop(uploads);
    api.until("the end of the archive", |api| {
        let names = inside(api, &format!("sorted(os.listdir('{folder}'))"));
        (names == json!(["f", "whole"])).then_some(())
    });
    assert_eq!(api.get(&path).body, b"old");
}

fn an_upload_resumes_where_it_was_cut() {
    let api = shared().api();
    let folder = folder(&api, "files-resumed");
    let path = format!("/files{folder}/f?upload=resumed-1");
    let content: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    put(&api, &format!("/files{folder}/f"), b"old");
    drop(begin(
        &api,
        &path,
        "Content-Length: 5000000",
        &content[..2_000_000],
    ));
    let arrived = api.until("the arrival of the first part", |api| {
        let reply = api.get(&path);
        let offset = reply.headers.get("upload-offset")?.parse::<usize>().ok()?;
        (offset == 2_000_000).then_some(offset)
    });
    let head = String::from_utf8(api.connect().first_bytes("HEAD", &path)).unwrap();
    assert!(
        head.contains("upload-offset: 2000000\r\n") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    assert_eq!(api.get(&path).json()["bytes"], arrived);
    assert_eq!(api.get(&format!("/files{folder}/f")).body, b"old");

    let range = |first: usize, last: usize| format!("bytes {first}-{last}/5000000");
    let resume = |first: usize, last: usize| {
        let headers = [("Content-Range", &*range(first, last))];
        api.connect()
            .send("PUT", &path, &headers, &content[first..=last])
    };
    // The broken request may not have ended yet.
    let elsewhere = api.until("the end of the cut request", |_| {
        let answer = resume(1_000_000, 1_999_999);
        (answer.error().1 != "upload_in_progress").then_some(answer)
    });
    let message =
        "2000000 bytes of the upload have arrived, but the request starts at another offset";
    assert_eq!(
        elsewhere.error(),
        (409, "other_offset".into(), message.into())
    );
    let further = resume(arrived, 3_999_999);
    assert_eq!(
        (further.status, &further.json()["status"]),
        (202, &json!("partial"))
    );
    let whole = resume(4_000_000, 4_999_999);
    assert_eq!(
        (whole.status, &whole.json()["bytes"]),
        (200, &json!(5_000_000))
    );
    assert!(api.get(&format!("/files{folder}/f")).body == content);
    assert_eq!(
        inside(&api, &format!("os.listdir('{folder}')")),
        json!(["f"])
    );
    assert_eq!(api.get(&path).error().1, "unknown_upload");

    // A partial upload can be cancelled.
    let head = [("Content-Range", "bytes 0-3/10")];
    assert_eq!(api.connect().send("PUT", &path, &head, b"half").status, 202);
    assert_eq!(api.connect().send("DELETE", &path, &[], b"").status, 200);
    assert_eq!(
        inside(&api, &format!("os.listdir('{folder}')")),
        json!(["f"])
    );
    let odd = put(&api, &format!("/files{folder}/f?upload=../../x"), b"");
    assert_eq!(odd.error().0, 400);
}

fn a_full_disk_is_reported_and_leaves_the_old_file() {
    let home = Home::new("files-full");
    home.down();
    home.write_config("limits:\n  shm: 8m\n");
    home.up();
    let api = home.api();
    put(&api, "/files/dev/shm/f", b"old");
    let large = vec![b'n'; 9 << 20];
    let message = "the disk is full; existing files are unchanged";
    let full = put(&api, "/files/dev/shm/f", &large);
    assert_eq!(full.error(), (507, "disk_full".into(), message.into()));
    let resumable = put(&api, "/files/dev/shm/f?upload=resumable", &large);
    assert_eq!(resumable.error().0, 507);
    let archive = finished(&[
        header("f", EntryType::Regular, large.len() as u64),
        large.clone(),
    ]);
    let unpacked = api
        .connect()
        .send("PUT", "/files/dev/shm", &[TAR], &archive);
    assert_eq!(unpacked.error().0, 507);
    assert_eq!(api.get("/files/dev/shm/f").body, b"old");
    assert_eq!(inside(&api, "os.listdir('/dev/shm')"), json!(["f"]));
    fs::write(home.project.join("large"), &large).unwrap();
    let ran = home.run(["cp", "large", "os:/dev/shm/f"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr.starts_with(&format!(
            "error: {message}\n\nhint: remove files in the container"
        )),
        "{ran:?}"
    );
    home.down();
}
