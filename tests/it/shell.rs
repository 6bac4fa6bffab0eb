//! Commands: the same as `bash -c` to the byte, and a context that lasts as an interactive bash's.

use crate::harness::{Api, Events, shared};
use crate::trials;
use serde_json::{Value, json};
use std::collections::BTreeSet;

trials![
    commands_do_what_bash_does,
    what_a_command_changes_is_there_in_the_next,
    sessions_have_contexts_of_their_own,
    folder_and_environment_are_changed_from_outside,
    a_command_that_runs_too_long_is_ended_with_all_it_started,
    a_command_is_stopped_as_by_ctrl_c,
    what_is_left_in_the_background_is_a_job,
    stdin_is_given_or_streamed,
    the_namespace_has_the_same_shell,
    input_that_breaks_off_is_not_its_end,
    output_comes_as_it_is_written_and_exactly,
    a_flood_of_output_is_kept_whole,
    bad_requests_are_refused_in_words,
    ten_thousand_commands_leave_nothing_behind,
];

/// What does the same as `bash -c`, in a session that nothing was done in.
const ALIKE: &[&str] = &[
    "true",
    "false",
    "exit 3",
    "echo one two",
    "printf 'no newline at the end'",
    "printf '%s\\n' \"a b\" 'c d' e\\ f",
    "echo $'tab\\there' $'\\x41'",
    "echo \"quotes 'inside' and \\\"escaped\\\"\"",
    "echo 'a' | tr a b | cat -n",
    "false | true",
    "set -o pipefail; false | true",
    "cat <<< 'a here-string'",
    "cat <<END\nhere $((1 + 1))\nEND",
    "cat <<'END'\nnot $expanded\nEND",
    "set -e; false; echo not reached",
    "set -e; false || true; echo reached",
    "set -u; echo $not_set; echo not reached",
    "set -x; echo traced; : $((1+1))",
    "trap 'echo bye' EXIT; echo hi",
    "trap 'echo bye $?' EXIT; exit 4",
    "trap 'echo term' TERM; kill -TERM $$; echo after",
    "trap 'echo err' ERR; false; true",
    "kill -KILL $$",
    "kill -TERM $$",
    "(exit 5); echo $?",
    "(cd /tmp; pwd); pwd",
    "x=1; (x=2; echo $x); echo $x",
    "umask 027; umask; touch /tmp/osctl-umask; stat -c %a /tmp/osctl-umask; rm /tmp/osctl-umask",
    "umask",
    "ulimit -n",
    "ulimit -n 64; ulimit -n; bash -c 'ulimit -n'",
    "echo žluťoučký 日本 🦀",
    "echo ${#x}; x=žlu; echo ${#x} ${x^^}",
    "printf '\\xff\\xfe\\x00binary\\x80'",
    "head -c 100000 /dev/zero | tr '\\0' x",
    "echo out; echo err >&2",
    "echo err >&2; exit 9",
    "not_a_command_at_all",
    "/etc/passwd",
    "/no/such/file",
    "if",
    "echo 'unclosed",
    "echo )",
    "for i in 1 2 3; do echo $i; done",
    "while read -r line; do echo \"<$line>\"; done <<< $'a\\nb'",
    "case abc in a*) echo yes;; *) echo no;; esac",
    "f() { local x=1; echo $x $1 $#; return 7; }; f a b",
    "a=(1 2 'three four'); echo ${#a[@]} \"${a[2]}\" ${a[@]:1:1}",
    "declare -A m=([k]=v); echo ${m[k]} ${!m[@]}",
    "echo {a,b}{1..3}",
    "echo /etc/host*",
    "echo '*' \"*\"",
    "shopt -s nullglob; echo /no/such/*",
    "echo $((7 / 2)) $((2 ** 10)) $((0x1f))",
    "echo $((1 / 0))",
    "echo $0 $# $-",
    "echo $LINENO\necho $LINENO\n\necho $LINENO",
    "echo $BASH_SUBSHELL $SHLVL; (echo $BASH_SUBSHELL)",
    "x=$(echo sub; exit 3); echo $x $?",
    "diff <(echo a) <(echo b)",
    "exec echo replaced",
    "exec 3>/tmp/osctl-fd; echo x >&3; cat /tmp/osctl-fd; rm /tmp/osctl-fd",
    "read x; echo \"<$x>\"",
    "cat",
    "sleep 0.01 & wait $!; echo $?",
    "echo a; # a comment",
    "echo a \\\n  b",
    "! true",
    "[[ abc =~ ^a(.)c$ ]] && echo ${BASH_REMATCH[1]}",
    "time_is() { TIMEFORMAT=x; time true; }; time_is",
    "eval 'echo evaluated; (exit 6)'",
    "source /dev/stdin <<< 'echo sourced'; return 2",
    "ls /proc/self/fd | wc -l",
    "test -t 0; echo $?",
    "alias x='echo aliased'; x",
    "getopts ab: o -b val; echo $o $OPTARG",
    "set -- a 'b c'; echo $# \"$2\"; shift; echo $1",
    "echo \"${x:-default}\" \"${x:+set}\" \"${HOME%/*}\"",
    "printf 'a\\0b' | od -c",
    "yes | head -n 3",
    "echo $(( RANDOM >= 0 )) $(( SECONDS >= 0 ))",
    "env | grep -c BASH_ENV",
    "compgen -A function | wc -l",
];

/// Cases that are tried at once.
const AT_ONCE: usize = 6;

/// What came, byte by byte.
#[derive(Debug, PartialEq, Eq)]
struct Came {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    code: i64,
}

#[track_caller]
fn shell(api: &Api, session: &str, command: &str) -> Value {
    let reply = api.post("/shell", &json!({"command": command, "session": session}));
    assert_eq!(reply.status, 200, "{}", reply.json());
    reply.json()
}

fn follow(api: &Api, body: &Value) -> Events {
    let accept = ("Accept", "application/x-ndjson");
    api.connect().events("POST", "/shell", &[accept], body)
}

fn bytes(event: &Value) -> Vec<u8> {
    match event["base64"].as_str() {
        Some(text) => decoded(text),
        None => event["text"].as_str().unwrap().as_bytes().to_vec(),
    }
}

/// Base64 is simple enough to be read here once more.
fn decoded(text: &str) -> Vec<u8> {
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let values: Vec<u32> = text
        .chars()
        .filter_map(|c| digits.find(c))
        .map(|v| v as u32)
        .collect();
    let mut bytes = Vec::new();
    for four in values.chunks(4) {
        let bits = four.iter().fold(0, |bits, v| (bits << 6) | v) << (6 * (4 - four.len()));
        bytes.extend(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

fn exactly(api: &Api, session: &str, command: &str) -> Came {
    let mut came = Came {
        stdout: Vec::new(),
        stderr: Vec::new(),
        code: 0,
    };
    for event in follow(api, &json!({"command": command, "session": session})) {
        match event["type"].as_str().unwrap() {
            "stdout" => came.stdout.extend(bytes(&event)),
            "stderr" => came.stderr.extend(bytes(&event)),
            "done" => came.code = event["reply"]["returncode"].as_i64().unwrap(),
            _ => {}
        }
    }
    came
}

fn create(api: &Api, name: &str) {
    let made = api.post("/sessions", &json!({"name": name}));
    assert_eq!(made.status, 200, "{}", made.json());
}

fn delete(api: &Api, name: &str) {
    let path = format!("/sessions/{name}");
    assert_eq!(api.connect().send("DELETE", &path, &[], b"").status, 200);
}

fn commands_do_what_bash_does() {
    let api = shared().api();
    // Where a session starts; others may have moved the default one.
    create(&api, "unmoved");
    let first = shell(&api, "unmoved", "true");
    delete(&api, "unmoved");
    let code = format!(
        "import base64, json, os, subprocess\n\
         env = {{k: v for k, v in os.environ.items() if not k.startswith('OSCTL_')}}\n\
         told = []\n\
         for command in json.loads({}):\n    \
             ran = subprocess.run(['bash', '-c', command], stdin=subprocess.DEVNULL, capture_output=True, env=env, cwd={:?}, process_group=0)\n    \
             code = 128 - ran.returncode if ran.returncode < 0 else ran.returncode\n    \
             told.append([base64.b64encode(ran.stdout).decode(), base64.b64encode(ran.stderr).decode(), code])\n\
         print(json.dumps(told))",
        json!(json!(ALIKE).to_string()),
        first["cwd"].as_str().unwrap(),
    );
    let reply = api.exec(&code);
    let told: Vec<Value> = serde_json::from_str(reply["stdout"].as_str().unwrap())
        .unwrap_or_else(|_| panic!("{reply}"));
    let cases: Vec<_> = ALIKE.iter().zip(&told).collect();
    let others = each_in_a_session_of_its_own(&api, &cases, |session, (command, told)| {
        let real = Came {
            stdout: decoded(told[0].as_str().unwrap()),
            stderr: decoded(told[1].as_str().unwrap()),
            code: told[2].as_i64().unwrap(),
        };
        let ours = exactly(&api, session, command);
        let text = |came: &Came| {
            let [stdout, stderr] = [&came.stdout, &came.stderr]
                .map(|bytes| String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned());
            format!("{} {stdout:?} {stderr:?}", came.code)
        };
        (ours != real).then(|| {
            format!(
                "{command:?}\n  bash {}\n  ours {}",
                text(&real),
                text(&ours)
            )
        })
    });
    assert!(
        ALIKE.len() >= 60 && others.is_empty(),
        "{}",
        others.join("\n")
    );
}

/// What went wrong, of cases that are tried some at a time: ending a session takes a while.
fn each_in_a_session_of_its_own<T: Sync>(
    api: &Api,
    cases: &[T],
    wrong: impl Fn(&str, &T) -> Option<String> + Sync,
) -> Vec<String> {
    let tried = |number: usize| {
        let session = format!("case-{number}");
        let mut others = Vec::new();
        for case in cases.iter().skip(number).step_by(AT_ONCE) {
            create(api, &session);
            others.extend(wrong(&session, case));
            delete(api, &session);
        }
        others
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE)
            .map(|number| {
                scope.spawn({
                    let tried = &tried;
                    move || tried(number)
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// A command, and what a later one shows of it.
const LASTING: &[(&str, &str, &str)] = &[
    ("cd /tmp", "pwd", "/tmp\n"),
    (
        "cd /usr; cd /opt",
        "echo $OLDPWD; cd - >/dev/null; pwd",
        "/usr\n/usr\n",
    ),
    ("export A='1 2'", "echo \"$A\"; printenv A", "1 2\n1 2\n"),
    ("B=3", "echo $B; printenv B", "3\n"),
    ("export C=1; unset C", "echo ${C-unset}", "unset\n"),
    ("unset HOME", "echo ${HOME-unset}", "unset\n"),
    ("alias greet='echo hello'", "greet you", "hello you\n"),
    (
        "alias gone=true; unalias gone",
        "type gone 2>/dev/null || echo none",
        "none\n",
    ),
    (
        "greet() { echo \"hi $1\"; }",
        "greet 'you there'",
        "hi you there\n",
    ),
    (
        "shout() { echo ${1^^}; }; export -f shout",
        "bash -c 'shout x'",
        "X\n",
    ),
    (
        "g() { [[ $1 == @(a|b) ]] && echo matched; }; shopt -s extglob",
        "g b",
        "matched\n",
    ),
    ("set -o pipefail", "false | true; echo $?", "1\n"),
    ("set -e", "false; echo not reached", ""),
    ("set -u", "echo $not_set; echo not reached", ""),
    ("shopt -s nullglob", "echo /no/such/*", "\n"),
    ("shopt -s dotglob; set -f", "echo *", "*\n"),
    ("umask 077", "umask", "0077\n"),
    ("ulimit -n 128", "ulimit -n", "128\n"),
    (
        "a=(1 'two words' 3)",
        "echo ${#a[@]} \"${a[1]}\"",
        "3 two words\n",
    ),
    (
        "declare -A m=([key]='a value')",
        "echo ${m[key]}",
        "a value\n",
    ),
    ("declare -i n=4", "n=n+1; echo $n", "5\n"),
    ("declare -r fixed=1", "fixed=2; echo $fixed", ""),
    ("declare -n ref=target; ref=7", "echo $target", "7\n"),
    (
        "trap 'echo usr1' USR1",
        "kill -USR1 $$; echo after",
        "usr1\nafter\n",
    ),
    ("set -- one 'two three'", "echo $# \"$2\"", "2 two three\n"),
    (
        "pushd /tmp >/dev/null; pushd /usr >/dev/null",
        "dirs; popd >/dev/null; pwd",
        "/usr /tmp ~/host\n/tmp\n",
    ),
    ("IFS=:", "x=a:b; set -- $x; echo $2", "b\n"),
    (
        "PS4='> '; X=$'line\\nbreak \\xff'",
        "printf %s \"$X\" | od -An -tx1",
        " 6c 69 6e 65 0a 62 72 65 61 6b 20 ff\n",
    ),
    (
        "echo 'export FROM_FILE=1; f_file() { echo file; }' >/tmp/osctl-rc; source /tmp/osctl-rc; rm /tmp/osctl-rc",
        "echo $FROM_FILE; f_file",
        "1\nfile\n",
    ),
    (
        "python3 -m venv --without-pip /tmp/osctl-venv && source /tmp/osctl-venv/bin/activate",
        "echo $VIRTUAL_ENV; command -v python; deactivate; echo ${VIRTUAL_ENV-none}; rm -r /tmp/osctl-venv",
        "/tmp/osctl-venv\n/tmp/osctl-venv/bin/python\nnone\n",
    ),
    (
        "export KEPT=1; cd /tmp; exit 3",
        "echo $KEPT; pwd",
        "1\n/tmp\n",
    ),
    ("set -e; KEPT=2; false; KEPT=3", "echo $KEPT", "2\n"),
    (
        "KEPT=4; trap 'true' EXIT",
        "echo $KEPT; trap -p EXIT | grep -c true",
        "4\n0\n",
    ),
    ("cd /tmp; kill -KILL $$", "pwd", "/root/host\n"),
    (
        "mkdir /tmp/osctl-gone; cd /tmp/osctl-gone; rmdir /tmp/osctl-gone",
        "cd / && pwd",
        "/\n",
    ),
    (
        "(cd /tmp; export SUB=1)",
        "pwd; echo ${SUB-unset}",
        "/root/host\nunset\n",
    ),
    (
        "hash -r; BASH_COMPAT=; RANDOM=1",
        "[[ $RANDOM != $RANDOM ]] && echo random",
        "random\n",
    ),
];

fn what_a_command_changes_is_there_in_the_next() {
    let api = shared().api();
    let others = each_in_a_session_of_its_own(&api, LASTING, |session, (first, second, shown)| {
        let home = json!({"path": "/root/host", "session": session});
        assert_eq!(api.post("/shell/cd", &home).status, 200);
        let before = shell(&api, session, first);
        let after = shell(&api, session, second);
        (after["stdout"] != *shown).then(|| format!("{first:?}\n  {before}\n  {second:?} {after}"))
    });
    assert!(others.is_empty(), "{}", others.join("\n"));
}

fn sessions_have_contexts_of_their_own() {
    let api = shared().api();
    for name in ["first", "second"] {
        create(&api, name);
        shell(&api, name, &format!("cd /tmp; export WHO={name}"));
    }
    assert_eq!(shell(&api, "first", "echo $WHO")["stdout"], "first\n");
    delete(&api, "first");
    create(&api, "first");
    let again = shell(&api, "first", "echo ${WHO-nobody}");
    assert_eq!(again["stdout"], "nobody\n");
    assert_ne!(again["cwd"], "/tmp");
    assert_eq!(shell(&api, "second", "pwd")["stdout"], "/tmp\n");
    for name in ["first", "second"] {
        delete(&api, name);
    }
}

fn folder_and_environment_are_changed_from_outside() {
    let api = shared().api();
    create(&api, "outside");
    let post = |path: &str, mut body: Value| {
        body["session"] = "outside".into();
        api.post(path, &body)
    };
    assert_eq!(
        post("/shell/cd", json!({"path": "/usr"})).json()["cwd"],
        "/usr"
    );
    assert_eq!(
        post("/shell/cd", json!({"path": "lib"})).json()["cwd"],
        "/usr/lib"
    );
    for path in ["no/such", "/etc/passwd", ""] {
        let answer = post("/shell/cd", json!({"path": path}));
        assert_eq!(answer.error().0, 400, "{path}");
    }
    assert_eq!(
        shell(&api, "outside", "pwd; echo $OLDPWD")["stdout"],
        "/usr/lib\n/usr\n"
    );
    let odd = "a'b \"c\" $HOME `id`\nž";
    assert_eq!(
        post("/shell/env", json!({"key": "ODD", "value": odd})).status,
        200
    );
    assert_eq!(
        shell(&api, "outside", "printenv ODD")["stdout"],
        format!("{odd}\n")
    );
    assert_eq!(
        post("/shell/env", json!({"key": "ODD", "value": null})).status,
        200
    );
    assert_eq!(
        shell(&api, "outside", "echo ${ODD-unset}")["stdout"],
        "unset\n"
    );
    for key in ["", "A-B", "1A", "A=B"] {
        assert_eq!(
            post("/shell/env", json!({"key": key, "value": "1"}))
                .error()
                .0,
            400
        );
    }
    assert_eq!(post("/shell/env", json!({"value": "1"})).error().0, 400);
    delete(&api, "outside");
}

fn processes(api: &Api, word: &str) -> usize {
    let code = format!(
        "import glob\n\
         def words(path):\n    \
             try: return open(path, 'rb').read()\n    \
             except OSError: return b''\n\
         len([p for p in glob.glob('/proc/[0-9]*/cmdline') if {word:?}.encode() in words(p)])"
    );
    let told = api.exec(&code);
    let count = told["result"].as_str().and_then(|text| text.parse().ok());
    count.unwrap_or_else(|| panic!("{told}"))
}

fn a_command_that_runs_too_long_is_ended_with_all_it_started() {
    let api = shared().api();
    shell(&api, "default", "cd /tmp; sleep 7654 &");
    let command = "cd /usr; setsid sleep 7653 & (trap '' TERM; setsid sleep 7653) & sleep 7653";
    let body = json!({"command": command, "timeout": 0.5});
    let reply = api.post("/shell", &body).json();
    assert_eq!(
        (&reply["status"], &reply["returncode"]),
        (&json!("interrupted"), &json!(-1))
    );
    assert_eq!(reply["error"]["type"], "Timeout");
    api.until("all are ended", |api| {
        (processes(api, "7653") == 0).then_some(())
    });
    // What an earlier command left is not this one's.
    assert_eq!(processes(&api, "7654"), 1);
    end_jobs(&api);
    shell(&api, "default", "cd /root/host");
}

fn end_jobs(api: &Api) {
    for job in api.get("/jobs").json()["jobs"].as_array().unwrap() {
        let path = format!("/jobs/{}", job["pid"]);
        api.connect().send("DELETE", &path, &[], b"");
    }
    api.until("no jobs", |api| {
        api.get("/jobs").json()["jobs"]
            .as_array()
            .unwrap()
            .is_empty()
            .then_some(())
    });
}

fn a_command_is_stopped_as_by_ctrl_c() {
    let api = shared().api();
    let body = json!({"command": "trap 'echo cleaned up; exit 1' INT; echo begun; while :; do sleep 0.1; done", "id": "stopped"});
    let mut events = follow(&api, &body);
    assert_eq!(events.next().unwrap()["text"], "begun\n");
    let ended = api
        .connect()
        .send("DELETE", "/shell/stopped", &[], b"")
        .json();
    assert_eq!(
        (&ended["status"], &ended["stdout"]),
        (&json!("interrupted"), &json!("begun\ncleaned up\n"))
    );
    let stubborn = json!({"command": "trap '' INT; echo begun; sleep 600", "id": "stubborn"});
    let mut events = follow(&api, &stubborn);
    assert_eq!(events.next().unwrap()["text"], "begun\n");
    let ended = api
        .connect()
        .send("DELETE", "/shell/stubborn", &[], b"")
        .json();
    assert_eq!(
        (&ended["status"], &ended["returncode"]),
        (&json!("interrupted"), &json!(-1))
    );
}

fn what_is_left_in_the_background_is_a_job() {
    let api = shared().api();
    // It keeps its stdout open, and nobody waits for it.
    let reply = shell(
        &api,
        "default",
        "echo first; (while :; do echo tick; sleep 0.05; done) & echo $!",
    );
    assert_eq!(reply["background"], true, "{reply}");
    let told = reply["stdout"].as_str().unwrap();
    assert!(told.starts_with("first\n"));
    let job = api.until("a job that talks", |api| {
        let jobs = api.get("/jobs").json()["jobs"].clone();
        let mut found = jobs
            .as_array()
            .unwrap()
            .iter()
            .filter(|job| job["run"] == reply["id"]);
        found
            .find(|job| job["output"].as_str().unwrap().contains("tick"))
            .cloned()
    });
    assert_eq!(job["session"], "default");
    let pids: BTreeSet<i64> = job["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["pid"].as_i64().unwrap())
        .collect();
    let pid: i64 = told.lines().find_map(|line| line.parse().ok()).unwrap();
    assert!(pids.contains(&pid), "{job}");
    let ended = api
        .connect()
        .send("DELETE", &format!("/jobs/{}", job["pid"]), &[], b"");
    assert_eq!(ended.status, 200);
    let gone = api
        .connect()
        .send("DELETE", &format!("/jobs/{}", job["pid"]), &[], b"");
    assert_eq!(gone.error().0, 404);
    assert_eq!(
        api.exec(&format!("import os; os.path.exists('/proc/{pid}')"))["result"],
        "False"
    );
    // With its session, a job ends, too.
    create(&api, "leaving");
    shell(&api, "leaving", "setsid sleep 7655 &");
    assert_eq!(processes(&api, "7655"), 1);
    delete(&api, "leaving");
    api.until("its end", |api| (processes(api, "7655") == 0).then_some(()));
}

fn stdin_is_given_or_streamed() {
    let api = shared().api();
    let body = json!({"command": "cat; echo; wc -c </dev/null", "stdin": "given žluť"});
    assert_eq!(
        api.post("/shell", &body).json()["stdout"],
        "given žluť\n0\n"
    );
    let open =
        json!({"command": "sha256sum; echo end", "stdin_open": true, "id": "streamed", "wait": 0});
    assert_eq!(api.post("/shell", &open).json()["status"], "running");
    let bytes: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let sent = api
        .connect()
        .send("POST", "/shell/streamed/stdin", &[], &bytes);
    assert_eq!(sent.status, 204);
    let ended = api.get("/shell/streamed?wait=60").json();
    let real = api.exec(
        "import hashlib; hashlib.sha256(bytes(n % 251 for n in range(5_000_000))).hexdigest()",
    );
    let digest = real["result"].as_str().unwrap().trim_matches('\'');
    assert_eq!(ended["stdout"], format!("{digest}  -\nend\n"));
    let late = api
        .connect()
        .send("POST", "/shell/streamed/stdin", &[], b"x");
    assert_eq!(late.error().0, 409);
    // One that reads nothing ends, whatever it was given.
    let unread = json!({"command": "true", "stdin": "x".repeat(1 << 20)});
    assert_eq!(api.post("/shell", &unread).json()["returncode"], 0);
}

fn the_namespace_has_the_same_shell() {
    let api = shared().api();
    create(&api, "namespace");
    let value = |code: &str| {
        let reply = api.exec_with(json!({"code": code, "session": "namespace"}));
        reply["result"]
            .as_str()
            .unwrap_or_else(|| panic!("{code}: {reply}"))
            .to_owned()
    };
    shell(
        &api,
        "namespace",
        "cd /usr; export FROM=outside; greet() { echo hi $1; }",
    );
    assert_eq!(
        value(
            "r = runtime.shell.run('pwd; echo $FROM; greet you; echo err >&2; exit 3'); r.stdout, r.stderr, r.returncode, r.cwd"
        ),
        "('/usr\\noutside\\nhi you\\n', 'err\\n', 3, '/usr')"
    );
    value(
        "runtime.shell.cd('lib'); runtime.shell.env('FROM', 'inside'); runtime.shell.env('GONE', None); 1",
    );
    let told = shell(&api, "namespace", "pwd; echo $FROM")["stdout"].clone();
    assert_eq!(told, "/usr/lib\ninside\n");
    assert_eq!(
        value("runtime.shell.cwd, runtime.shell.environment['FROM']"),
        "('/usr/lib', 'inside')"
    );
    assert_eq!(
        value("import os; os.getcwd() != '/usr/lib' and 'FROM' not in os.environ"),
        "True"
    );
    assert_eq!(
        value("runtime.shell.run('cat; wc -c </dev/null', stdin='given').stdout"),
        "'given0\\n'"
    );
    assert_eq!(
        value("runtime.shell.run('wc -c', stdin=b'\\xff\\x00').stdout.strip()"),
        "'2'"
    );
    assert_eq!(
        value("len(runtime.shell.run('head -c 3000000 /dev/zero | tr \\\\\\\\0 x').stdout)"),
        "3000000"
    );
    assert_eq!(
        value("r = runtime.shell.run('echo begun; sleep 100', timeout=3); r.stdout, r.returncode"),
        "('begun\\n', -1)"
    );
    for (code, kind) in [
        ("runtime.shell.cd('no/such')", "FileNotFoundError"),
        ("runtime.shell.cd('/etc/passwd')", "NotADirectoryError"),
        ("runtime.shell.env('a b', 'x')", "ValueError"),
        ("runtime.shell.env('A', 'a\\0b')", "ValueError"),
        ("runtime.shell.env(5, 'x')", "ValueError"),
        ("runtime.shell.run('a\\0b')", "ValueError"),
    ] {
        let reply = api.exec_with(json!({"code": code, "session": "namespace"}));
        assert_eq!(reply["error"]["type"], kind, "{code}");
    }
    // More than any buffer on the way holds, in both directions at once.
    assert_eq!(
        value("len(runtime.shell.run('cat', stdin=b'x' * 8_000_000).stdout)"),
        "8000000"
    );
    assert_eq!(
        value("runtime.shell.run('head -c 1', stdin=b'x' * 8_000_000).stdout"),
        "'x'"
    );
    // An interrupt of the cell is the command's, too.
    let run = json!({"code": "runtime.shell.run('sleep 7652')", "session": "namespace", "id": "in-shell", "wait": 0});
    api.post("/exec", &run);
    api.until("its begin", |api| {
        (processes(api, "7652") > 0).then_some(())
    });
    let ended = api
        .connect()
        .send("DELETE", "/exec/in-shell", &[], b"")
        .json();
    assert_eq!(
        (&ended["status"], &ended["kernel"]["state"]),
        (&json!("interrupted"), &json!("kept"))
    );
    api.until("its end", |api| (processes(api, "7652") == 0).then_some(()));
    delete(&api, "namespace");
}

fn input_that_breaks_off_is_not_its_end() {
    let api = shared().api();
    let open = json!({"command": "cat >/dev/null; echo all of it", "stdin_open": true, "id": "cut", "wait": 0});
    assert_eq!(api.post("/shell", &open).status, 200);
    let mut connection = api.connect();
    let head = format!(
        "POST /shell/cut/stdin HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Length: 1000000\r\n\r\nbegun",
        api.address, api.token
    );
    connection.write_raw(head.as_bytes());
    drop(connection);
    let ended = api.get("/shell/cut?wait=30").json();
    assert_eq!(ended["status"], "interrupted", "{ended}");
    assert_eq!(ended["error"]["type"], "InputCut");
    assert!(!ended["stdout"].as_str().unwrap().contains("all of it"));
}

fn output_comes_as_it_is_written_and_exactly() {
    let api = shared().api();
    let came = exactly(
        &api,
        "default",
        "head -c 300000 /dev/urandom | tee /tmp/osctl-noise; exit 7",
    );
    assert_eq!((came.stdout.len(), came.code), (300_000, 7));
    let code =
        "import base64; print(base64.b64encode(open('/tmp/osctl-noise', 'rb').read()).decode())";
    let noise = api.exec(code);
    assert_eq!(
        came.stdout,
        decoded(noise["stdout"].as_str().unwrap().trim())
    );
    let gate = "rm -f /tmp/osctl-gate; mkfifo /tmp/osctl-gate";
    assert_eq!(shell(&api, "default", gate)["returncode"], 0);
    let command = "echo first; read -r x </tmp/osctl-gate; echo $x; rm /tmp/osctl-gate";
    let mut events = follow(&api, &json!({"command": command}));
    assert_eq!(events.next().unwrap()["text"], "first\n");
    shell(&api, "default", "echo opened > /tmp/osctl-gate");
    assert!(events.any(|event| event["type"] == "done"));
}

fn a_flood_of_output_is_kept_whole() {
    let api = shared().api();
    let reply = shell(&api, "default", "seq 1 14000000");
    let total = reply["truncated"]["stdout"]["total"].as_u64().unwrap();
    assert!(total > 100 << 20, "{total}");
    assert!(reply["stdout"].as_str().unwrap().ends_with("\n14000000\n"));
    let (id, mut offset, mut next) = (reply["id"].as_str().unwrap(), 0, 1u64);
    let mut cut = String::new();
    while offset < total {
        let page = api
            .get(&format!("/shell/{id}/output?stream=stdout&offset={offset}"))
            .json();
        let text = cut + page["text"].as_str().unwrap();
        let whole = text.rfind('\n').unwrap() + 1;
        for line in text[..whole].lines() {
            assert_eq!(line.parse::<u64>().unwrap(), next);
            next += 1;
        }
        cut = text[whole..].to_owned();
        offset = page["next"].as_u64().unwrap();
    }
    assert_eq!(next, 14_000_001);
}

fn bad_requests_are_refused_in_words() {
    let api = shared().api();
    for (body, status, kind) in [
        (json!({}), 400, "invalid_field"),
        (json!({"command": 1}), 400, "invalid_field"),
        (json!({"command": "true", "more": 1}), 400, "invalid_field"),
        (json!({"command": "a\0b"}), 400, "invalid_field"),
        (
            json!({"command": "true", "timeout": -1}),
            400,
            "invalid_field",
        ),
        (
            json!({"command": "true", "timeout": 0}),
            400,
            "invalid_field",
        ),
        (json!({"command": "true", "id": "cd"}), 400, "invalid_field"),
        (
            json!({"command": "true", "id": "../x"}),
            400,
            "invalid_field",
        ),
        (
            json!({"command": "true", "session": "nobody"}),
            404,
            "unknown_session",
        ),
    ] {
        let (told, word, _) = api.post("/shell", &body).error();
        assert_eq!((told, word.as_str()), (status, kind), "{body}");
    }
    let first = api
        .post("/shell", &json!({"command": "echo $$", "id": "once"}))
        .json();
    let again = api
        .post("/shell", &json!({"command": "echo $$", "id": "once"}))
        .json();
    assert_eq!(first["stdout"], again["stdout"]);
    let other = api.post("/shell", &json!({"command": "echo 2", "id": "once"}));
    assert_eq!(other.error().0, 409);
    assert_eq!(api.get("/shell/nothing").error().0, 404);
    let long = format!("echo {}", "x".repeat(1 << 20));
    let reply = api.post("/shell", &json!({"command": long})).json();
    assert_eq!(reply["returncode"], 0);
}

fn ten_thousand_commands_leave_nothing_behind() {
    let api = shared().api();
    end_jobs(&api);
    let count = |api: &Api| -> (usize, usize, usize) {
        let code = "import os\n\
            def read(path):\n    \
                try: return open(path, 'rb').read()\n    \
                except OSError: return b''\n\
            pids = [p for p in os.listdir('/proc') if p.isdigit()]\n\
            companion = next(p for p in pids if read(f'/proc/{p}/cmdline').split(b'\\0')[1:2] == [b'companion'])\n\
            zombies = [p for p in pids if read(f'/proc/{p}/stat').rsplit(b')')[-1].split()[:1] == [b'Z']]\n\
            len(os.listdir(f'/proc/{companion}/fd')), len(pids), len(os.listdir('/tmp')) + len(zombies)";
        let told = api.exec(code)["result"].as_str().unwrap().to_owned();
        let mut numbers = told
            .trim_matches(['(', ')'])
            .split(", ")
            .map(|n| n.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        (next(), next(), next())
    };
    let settled = |api: &Api| {
        let mut last = (0, 0, 0);
        api.until("rest", |api| {
            let now = count(api);
            (std::mem::replace(&mut last, now) == now).then_some(now)
        })
    };
    shell(&api, "default", "true");
    let before = settled(&api);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut connection = api.connect();
                for number in 0..1250 {
                    let command = format!("(setsid true &); echo {number}; exit {}", number % 7);
                    let body = json!({"command": command}).to_string();
                    let reply = connection
                        .send("POST", "/shell", &[], body.as_bytes())
                        .json();
                    assert_eq!(reply["stdout"], format!("{number}\n"), "{reply}");
                    assert_eq!(reply["returncode"], number % 7);
                }
            });
        }
    });
    api.until("what was there before", |api| {
        let now = count(api);
        (now.0 <= before.0 && now.1 <= before.1 && now.2 <= before.2).then_some(())
    });
}
