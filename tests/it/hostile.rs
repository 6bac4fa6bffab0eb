//! Code that misbehaves: the service answers clearly and keeps running.

use crate::harness::{Api, Engine, shared};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::thread;

trials![
    a_reset_empties_the_namespace_and_is_reported_to_other_runs,
    ten_megabytes_of_output_keep_head_and_tail,
    bytes_that_are_not_utf8_are_replaced,
    a_megabyte_written_from_c_with_the_lock_held_passes,
    output_of_children_and_of_the_descriptor_counts,
    a_background_child_that_never_stops_writing_blocks_nothing,
    closing_descriptors_does_not_end_the_service,
    deep_recursion_is_an_exception,
    a_kernel_that_exits_is_replaced_and_the_loss_is_reported,
    a_crash_of_the_kernel_is_reported_with_its_signal,
    killing_the_supervisor_ends_the_kernel_and_its_forks,
    a_fork_bomb_ends_with_its_run,
    code_that_uses_all_memory_is_ended_with_the_reason,
    code_that_ignores_interrupts_is_ended,
    descendants_that_left_the_group_end_with_the_kernel,
    a_question_to_the_user_fails_with_a_message,
    a_forked_child_never_answers_for_the_kernel,
    half_a_character_in_an_error_does_not_end_the_kernel,
    a_server_of_an_earlier_run_outlives_an_interrupt,
    stopping_the_supervisor_stops_no_timeout,
    a_finalizer_that_never_ends_is_interrupted,
    code_waits_for_a_kernel_that_does_not_read,
    a_package_that_prevents_the_kernel_start_is_left_out,
];

/// Sets a variable, runs code that ends the kernel, and checks that the next run reports the loss.
#[track_caller]
fn lose_kernel(code: &str) -> Value {
    let api = shared().api();
    let before = api.exec("survivor = 1")["kernel"]["generation"]
        .as_u64()
        .unwrap();
    let reply = api.exec(code);
    assert_eq!(reply["status"], "failed", "{reply}");
    assert_eq!(
        (
            reply["error"]["type"].as_str(),
            reply["kernel"]["state"].as_str()
        ),
        (Some("KernelDied"), Some("lost")),
        "{reply}"
    );
    assert_next_generation(&api, before);
    reply
}

#[track_caller]
fn assert_next_generation(api: &Api, before: u64) {
    let next = api.exec("'survivor' in globals()");
    assert_eq!(next["result"], "False", "{next}");
    assert_eq!(
        (
            next["kernel"]["generation"].as_u64(),
            next["kernel"]["state"].as_str()
        ),
        (Some(before + 1), Some("lost"))
    );
    assert_eq!(api.exec("1")["kernel"]["state"], "kept");
}

#[track_caller]
fn message(reply: &Value) -> &str {
    reply["error"]["message"].as_str().unwrap()
}

fn a_reset_empties_the_namespace_and_is_reported_to_other_runs() {
    let api = shared().api();
    let before = api.exec("gone_after_reset = 1; import os; os.chdir('/tmp')");
    let seen = before["kernel"]["generation"].as_u64().unwrap();
    let reply = api.until("a free kernel", |api| {
        let answer = api.post("/reset", &json!({}));
        (answer.status == 200).then(|| answer.json())
    });
    assert_eq!(reply["status"], "completed");
    assert!(reply["kernel"]["generation"].as_u64().unwrap() > seen);
    assert_eq!(
        api.exec("'gone_after_reset' in globals()")["result"],
        "False"
    );
    assert_eq!(api.exec("import os; os.getcwd()")["result"], "'/tmp'");
    let told = api.exec_with(json!({"code": "1", "seen": seen}));
    assert_eq!(told["kernel"]["state"], "lost");
}

fn ten_megabytes_of_output_keep_head_and_tail() {
    let reply = shared()
        .api()
        .exec("for i in range(1_250_000): print(f'{i:07}')");
    assert_eq!(reply["status"], "completed");
    let stdout = reply["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("0000000\n") && stdout.ends_with("1249999\n"));
    assert_eq!(reply["truncated"]["stdout"]["total"], 10_000_000);
    assert!(stdout.len() < 1_100_000 && stdout.contains("bytes left out"));
}

fn bytes_that_are_not_utf8_are_replaced() {
    let reply = shared()
        .api()
        .exec("import os\n_ = os.write(1, b'a\\xff\\xfeb\\n')\nprint('\\ud800')");
    assert_eq!(
        (reply["status"].as_str(), reply["stdout"].as_str()),
        (Some("completed"), Some("a\u{fffd}\u{fffd}b\n\\ud800\n"))
    );
}

fn a_megabyte_written_from_c_with_the_lock_held_passes() {
    let code = "import ctypes\nlibc = ctypes.PyDLL(None)\ndata = b'c' * (1 << 20)\nsent = 0\n\
                while sent < len(data): sent += libc.write(1, data[sent:], len(data) - sent)\nsent";
    let reply = shared().api().exec(code);
    assert_eq!(
        (
            reply["result"].as_str(),
            reply["stdout"].as_str().map(str::len)
        ),
        (Some("1048576"), Some(1 << 20))
    );
}

fn output_of_children_and_of_the_descriptor_counts() {
    let code = "import os, subprocess, sys\nprint('1', flush=True)\nsubprocess.run(['echo', '2'])\nos.system('echo 3; echo e >&2')\n_ = os.write(1, b'4\\n')\n!echo 5";
    let reply = shared().api().exec(code);
    assert_eq!(
        (reply["stdout"].as_str(), reply["stderr"].as_str()),
        (Some("1\n2\n3\n4\n5\n"), Some("e\n")),
        "{reply}"
    );
}

fn a_background_child_that_never_stops_writing_blocks_nothing() {
    let api = shared().api();
    let reply = api.exec("import subprocess\nflood = subprocess.Popen(['yes'])\n'begun'");
    assert_eq!(reply["result"], "'begun'");
    assert_eq!(api.exec("1+1")["result"], "2");
    assert_eq!(api.exec("flood.kill(); flood.wait()")["result"], "-9");
}

fn closing_descriptors_does_not_end_the_service() {
    let api = shared().api();
    let reply = api.exec("import os\nos.close(1); os.close(2)");
    assert_eq!(reply["status"], "completed", "{reply}");
    assert_eq!(api.exec("print('back')")["stdout"], "back\n");
    let before = api.exec("survivor = 1")["kernel"]["generation"]
        .as_u64()
        .unwrap();
    let reply = api.exec("import os\nos.closerange(0, 65536)");
    assert_eq!(
        (reply["status"].as_str(), reply["kernel"]["state"].as_str()),
        (Some("failed"), Some("lost")),
        "{reply}"
    );
    assert_next_generation(&api, before);
}

fn deep_recursion_is_an_exception() {
    let reply = shared().api().exec("def f(n): return f(n + 1)\nf(0)");
    assert_eq!(
        (reply["status"].as_str(), reply["error"]["type"].as_str()),
        (Some("failed"), Some("RecursionError"))
    );
}

fn a_kernel_that_exits_is_replaced_and_the_loss_is_reported() {
    let reply = lose_kernel("import os\nprint('last words')\nos._exit(3)");
    assert!(
        message(&reply).contains("the kernel exited with code 3"),
        "{reply}"
    );
    assert_eq!(reply["stdout"], "last words\n");
}

fn a_crash_of_the_kernel_is_reported_with_its_signal() {
    assert!(message(&lose_kernel("import ctypes; ctypes.string_at(0)")).contains("SIGSEGV"));
    assert!(message(&lose_kernel("import os; os.kill(os.getpid(), 9)")).contains("SIGKILL"));
}

fn killing_the_supervisor_ends_the_kernel_and_its_forks() {
    let reply = lose_kernel(
        "import os, time\nguard = os.getppid()\nforked = os.fork()\n\
         if forked == 0: time.sleep(600)\n\
         print(os.getpid(), forked)\nos.kill(guard, 9)\ntime.sleep(60)",
    );
    assert!(message(&reply).contains("supervisor was killed"), "{reply}");
    let pids = reply["stdout"].as_str().unwrap().trim().replace(' ', ", ");
    shared().api().until("the old kernel's end", |api| {
        let code = format!("import os; [p for p in [{pids}] if os.path.exists(f'/proc/{{p}}')]");
        (api.exec(&code)["result"] == "[]").then_some(())
    });
}

fn a_fork_bomb_ends_with_its_run() {
    let api = shared().api();
    let code =
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass";
    let reply = thread::scope(|scope| {
        let bomb = scope.spawn(|| api.exec_with(json!({"code": code, "timeout": 100})));
        api.until("no more processes", |_| (processes() > 400).then_some(()));
        // A request that needs a thread of the companion waits for the thread, or is refused.
        api.post("/sessions", &json!({"name": "meanwhile"}));
        api.post("/interrupt", &json!({}));
        bomb.join().unwrap()
    });
    assert_eq!(reply["status"], "interrupted", "{reply}");
    // The supervisor ends and reaps each process.
    api.until("the end of all", |_| (processes() < 60).then_some(()));
    assert_eq!(api.exec("6 * 7")["result"], "42");
    api.done("/sessions", &json!({"name": "meanwhile"}));
    api.until("the new session is kept", |_| {
        let kept = fs::read_to_string(shared().data().join("session-state.json")).ok()?;
        kept.contains("meanwhile").then_some(())
    });
    api.connect()
        .send("DELETE", "/sessions/meanwhile", &[], b"");
}

/// How many processes and threads the shared container has, by its control group.
fn processes() -> u32 {
    let path = format!(
        "/containers/{}/stats?stream=false&one-shot=true",
        shared().container()
    );
    let stats = Engine.get(&path).json();
    u32::try_from(stats["pids_stats"]["current"].as_u64().unwrap()).unwrap()
}

fn code_that_uses_all_memory_is_ended_with_the_reason() {
    let reply = lose_kernel("hog = []\nwhile True: hog.append(bytearray(b'x' * (16 << 20)))");
    assert!(message(&reply).contains("out of memory"), "{reply}");
}

fn code_that_ignores_interrupts_is_ended() {
    let api = shared().api();
    let before = api.exec("survivor = 1")["kernel"]["generation"]
        .as_u64()
        .unwrap();
    let code = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nwhile True: time.sleep(1)";
    let reply = api.exec_with(json!({"code": code, "timeout": 2}));
    assert_eq!(
        (reply["status"].as_str(), reply["kernel"]["state"].as_str()),
        (Some("interrupted"), Some("lost"))
    );
    assert!(message(&reply).contains("variables are lost"), "{reply}");
    assert_next_generation(&api, before);
}

fn descendants_that_left_the_group_end_with_the_kernel() {
    let api = shared().api();
    let code = "import subprocess\nescaped = subprocess.Popen(['setsid', 'sleep', '86399'])\nimport time\n\
                while not subprocess.run(['pgrep', '-fx', 'sleep 86399'], capture_output=True).stdout: time.sleep(0.01)\n\
                import os; os.kill(os.getpid(), 9)";
    lose_kernel(code);
    let left = api.exec("import subprocess\nsubprocess.run(['pgrep', '-fx', 'sleep 86399'], capture_output=True, text=True).stdout");
    assert_eq!(left["result"], "''");
}

fn a_question_to_the_user_fails_with_a_message() {
    let api = shared().api();
    let reply = api.exec("input('name? ')");
    assert_eq!(reply["status"], "failed");
    assert!(message(&reply).contains("is not available here"), "{reply}");
    assert_eq!(api.exec("print('a'); exit(); print('b')")["stdout"], "a\n");
    assert_eq!(api.exec("1")["kernel"]["state"], "kept");
}

fn a_forked_child_never_answers_for_the_kernel() {
    let api = shared().api();
    let reply = api.exec("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('parent' if pid else 'child')\n'end'");
    assert_eq!(
        (reply["status"].as_str(), reply["result"].as_str()),
        (Some("completed"), Some("'end'"))
    );
    assert_eq!(api.exec("2+2")["result"], "4");
}

fn half_a_character_in_an_error_does_not_end_the_kernel() {
    let api = shared().api();
    let reply = api.exec("raise ValueError('file \\udcff')");
    assert_eq!(
        (reply["status"].as_str(), message(&reply)),
        (Some("failed"), "file \u{fffd}")
    );
    let reply = api.exec("'\\ud800'");
    assert_eq!(
        (reply["status"].as_str(), reply["kernel"]["state"].as_str()),
        (Some("completed"), Some("kept"))
    );
}

fn a_server_of_an_earlier_run_outlives_an_interrupt() {
    let api = shared().api();
    api.exec(
        "import subprocess, time\nserver = subprocess.Popen(['sleep', '1000'])\ntime.sleep(0.05)",
    );
    let reply = api.exec_with(json!({
        "code": "import os\nchild = subprocess.Popen(['sleep', '1000'])\nos.system('sleep 1000')\ntime.sleep(1000)",
        "timeout": 2
    }));
    assert_eq!(
        (reply["status"].as_str(), reply["kernel"]["state"].as_str()),
        (Some("interrupted"), Some("kept"))
    );
    let reply = api.exec("server.poll(), child.wait(), server.kill()");
    assert!(
        reply["result"].as_str().unwrap().starts_with("(None, -"),
        "{reply}"
    );
}

fn stopping_the_supervisor_stops_no_timeout() {
    let api = shared().api();
    let before = api.exec("survivor = 1")["kernel"]["generation"]
        .as_u64()
        .unwrap();
    let code = "import os, signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n\
                os.kill(os.getppid(), signal.SIGSTOP)\nwhile True: time.sleep(1)";
    let reply = api.exec_with(json!({"code": code, "timeout": 3}));
    assert_eq!(
        (reply["status"].as_str(), reply["kernel"]["state"].as_str()),
        (Some("interrupted"), Some("lost"))
    );
    assert_next_generation(&api, before);
}

fn a_finalizer_that_never_ends_is_interrupted() {
    let api = shared().api();
    api.exec(
        "class Endless:\n    def __del__(self):\n        while True: pass\nendless = Endless()",
    );
    let answer = api.post("/reset", &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.json());
    assert_eq!(api.exec("'endless' in globals()")["result"], "False");
}

fn code_waits_for_a_kernel_that_does_not_read() {
    let api = shared().api();
    // A task that runs between cells, and blocks: the kernel reads nothing for a while.
    api.exec("import asyncio, time\nasync def block():\n    await asyncio.sleep(0)\n    print('x' * (2 << 20))\n    time.sleep(1)\ntask = asyncio.create_task(block())");
    let long = format!("len('{}')", "y".repeat(5 << 20));
    let begin = std::time::Instant::now();
    let waiting = api.post(
        "/exec",
        &json!({"code": long, "queue": true, "wait": 0, "id": "long-code"}),
    );
    assert_eq!(waiting.json()["status"], "running");
    assert_eq!(api.get("/status").status, 200);
    assert!(begin.elapsed() < crate::harness::TEST_TIMEOUT);
    assert_eq!(
        api.get("/exec/long-code?wait=60").json()["result"],
        (5 << 20).to_string()
    );
}

fn a_package_that_prevents_the_kernel_start_is_left_out() {
    let api = shared().api();
    let code = "import glob\nplace = glob.glob('/data/packages/*/lib/*/site-packages')[0] + '/broken.pth'\n\
                open(place, 'w').write('import os; os._exit(9)\\n')\nimport os; os._exit(1)";
    assert_eq!(api.exec(code)["error"]["type"], "KernelDied");
    let reply = api.exec("import os; os.environ.get('OSCTL_PACKAGES')");
    assert_eq!(
        (reply["status"].as_str(), reply["kernel"]["state"].as_str()),
        (Some("completed"), Some("lost"))
    );
    let health = api.get("/health").json();
    assert!(
        health["services"][0]["detail"]
            .as_str()
            .unwrap()
            .contains("without the packages"),
        "{health}"
    );
    let mend = "import glob, os\nfor place in glob.glob('/data/packages/*/lib/*/site-packages/broken.pth'): os.remove(place)\nos._exit(1)";
    assert_eq!(api.exec(mend)["error"]["type"], "KernelDied");
    api.exec("1");
    assert_eq!(api.get("/health").json()["services"][0]["detail"], "idle");
}
