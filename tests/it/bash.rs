//! Trials of the shell against bash: the same output as `bash -c`, byte for byte, and a context that lasts as in an
//! interactive bash.

use crate::harness::{Api, shared};
use crate::shell::{ShellOutput, create, decode_base64, delete, shell, shell_output};
use crate::trials;
use serde_json::{Value, json};

trials![
    commands_behave_as_in_bash,
    changes_by_a_command_last_until_the_next,
];

/// Commands that behave as with `bash -c`, each in a fresh session.
const SAME_AS_BASH: &[&str] = &[
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
    "trap 'echo next: $BASH_COMMAND' DEBUG; true; echo hi",
    "trap 'echo next' DEBUG; trap 'echo bye $?' EXIT; (exit 5)",
    "set -T; trap 'echo next: $BASH_COMMAND' DEBUG; f() { echo in; }; f; (echo out)",
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

/// Cases that run at the same time.
const MAX_CONCURRENT_CASES: usize = 6;

fn commands_behave_as_in_bash() {
    let api = shared().api();
    // The start folder of a session; other trials may have changed the folder of the default session.
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
        json!(json!(SAME_AS_BASH).to_string()),
        first["cwd"].as_str().unwrap(),
    );
    let reply = api.exec(&code);
    let results: Vec<Value> = serde_json::from_str(reply["stdout"].as_str().unwrap())
        .unwrap_or_else(|_| panic!("{reply}"));
    let cases: Vec<_> = SAME_AS_BASH.iter().zip(&results).collect();
    let others = run_each_in_own_session(&api, &cases, |session, (command, results)| {
        let real = ShellOutput {
            stdout: decode_base64(results[0].as_str().unwrap()),
            stderr: decode_base64(results[1].as_str().unwrap()),
            code: results[2].as_i64().unwrap(),
        };
        let ours = shell_output(&api, session, command);
        let text = |came: &ShellOutput| {
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
        SAME_AS_BASH.len() >= 60 && others.is_empty(),
        "{}",
        others.join("\n")
    );
}

/// Runs cases in parallel, because ending a session takes time; returns the failures.
fn run_each_in_own_session<T: Sync>(
    api: &Api,
    cases: &[T],
    wrong: impl Fn(&str, &T) -> Option<String> + Sync,
) -> Vec<String> {
    let tried = |number: usize| {
        let session = format!("case-{number}");
        let mut others = Vec::new();
        for case in cases.iter().skip(number).step_by(MAX_CONCURRENT_CASES) {
            create(api, &session);
            others.extend(wrong(&session, case));
            delete(api, &session);
        }
        others
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..MAX_CONCURRENT_CASES)
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

/// A command, a later command, and the output of the later command.
const LASTING_CHANGES: &[(&str, &str, &str)] = &[
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
    ("set -C", "[[ -o noclobber ]] && echo on", "on\n"),
    ("trap 'echo gone' RETURN; R=1", "echo $R", "1\n"),
    (
        "trap 'echo seen' DEBUG",
        "echo 1; echo 2",
        "seen\n1\nseen\n2\n",
    ),
    (
        "set -T; trap 'echo seen' DEBUG",
        "f() { echo in; }; f",
        "seen\nseen\nseen\nin\n",
    ),
    (
        "set -E; trap 'echo err' ERR; f() { false; }",
        "f; true",
        "err\nerr\n",
    ),
    ("trap 'echo seen' DEBUG; trap - DEBUG", "echo 1", "1\n"),
    ("trap : EXIT; cat <<<text; H=1", "echo $H", "1\n"),
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

fn changes_by_a_command_last_until_the_next() {
    let api = shared().api();
    let others =
        run_each_in_own_session(&api, LASTING_CHANGES, |session, (first, second, shown)| {
            let home = json!({"path": "/root/host", "session": session});
            assert_eq!(api.post("/shell/cd", &home).status, 200);
            let before = shell(&api, session, first);
            let after = shell(&api, session, second);
            (after["stdout"] != *shown)
                .then(|| format!("{first:?}\n  {before}\n  {second:?} {after}"))
        });
    assert!(others.is_empty(), "{}", others.join("\n"));
}
