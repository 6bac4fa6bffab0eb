//! A long life in short: random mixes of runs, interrupts, disconnects, deaths and sessions, after
//! which every run has one end and nothing is left over.
//!
//! The seed is printed; `OSCTL_SOAK_SEED` replays its mix, `OSCTL_SOAK_STEPS` makes it longer.

use crate::harness::{Api, shared};
use crate::trials;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

trials![a_random_life_leaves_nothing_behind];

/// Few enough that every run can still be found in the end.
const STEPS: usize = 240;

/// What one process and the disk hold, told from inside.
const LEFT: &str = r"
import glob, json, os
def words(pid):
    try: return open(f'/proc/{pid}/cmdline', 'rb').read().split(b'\0')
    except OSError: return []
pids = [p for p in os.listdir('/proc') if p.isdigit()]
companion = next(p for p in pids if words(p)[1:2] == [b'companion'])
status = dict(line.split(':', 1) for line in open(f'/proc/{companion}/status'))
print(json.dumps({
    'processes': len(pids),
    'fds': len(os.listdir(f'/proc/{companion}/fd')),
    'sockets': len(glob.glob('/run/osctl/kernels/*')),
    'files': len(glob.glob('/data/runs/*')),
    'memory': int(status['VmRSS'].split()[0]),
}))
";

fn left(api: &Api) -> Value {
    let reply = api.exec(LEFT);
    serde_json::from_str(reply["stdout"].as_str().unwrap()).unwrap_or_else(|_| panic!("{reply}"))
}

/// Numbers that look random and are the same for a seed (xorshift64*, Vigna 2016).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % count
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name).ok();
    said.map_or(otherwise, |text| text.parse().unwrap())
}

fn a_random_life_leaves_nothing_behind() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("OSCTL_SOAK_SEED", u64::from(now.subsec_nanos()) | 1);
    let steps = number("OSCTL_SOAK_STEPS", STEPS as u64) as usize;
    say(&format!("OSCTL_SOAK_SEED={seed} OSCTL_SOAK_STEPS={steps}"));
    let api = shared().api();
    settle(&api);
    let before = left(&api);
    let mut life = Life {
        api: &api,
        random: Random(seed),
        sessions: vec!["default".into()],
        runs: Vec::new(),
    };
    for step in 0..steps {
        life.step(step);
    }
    life.end(steps);
    settle(&api);
    let after = left(&api);
    for (what, more) in [
        ("processes", 0),
        ("fds", 0),
        ("sockets", 0),
        // The runs that can be found may have their output on disk.
        ("files", 40),
        ("memory", 48 << 10),
    ] {
        let count = |told: &Value| told[what].as_u64().unwrap();
        assert!(
            count(&after) <= count(&before) + more,
            "{what} are left over (seed {seed}): {before} → {after}"
        );
    }
}

#[expect(
    clippy::print_stdout,
    reason = "without its seed a failure can't be replayed"
)]
fn say(line: &str) {
    println!("{line}");
}

/// Waits until every session is idle and the spare kernels are there again.
fn settle(api: &Api) {
    api.until("rest", |api| {
        let sessions = api.get("/sessions").json();
        let all = sessions["sessions"].as_array().unwrap();
        let is_idle = |s: &Value| s["ready"] == true && s["busy"] == false;
        if !all.iter().all(is_idle) {
            return None;
        }
        // A kernel and its guard for each session and each spare, the template; tini, the
        // companion, and who asks.
        let code = "import os; len([p for p in os.listdir('/proc') if p.isdigit() and b'--template' in open(f'/proc/{p}/cmdline', 'rb').read()])";
        let kernels: usize = api.exec(code)["result"].as_str()?.parse().ok()?;
        (kernels == all.len() + 3).then_some(())
    });
}

struct Life<'a> {
    api: &'a Api,
    random: Random,
    sessions: Vec<String>,
    runs: Vec<String>,
}

impl Life<'_> {
    fn step(&mut self, step: usize) {
        match self.random.below(12) {
            0 | 1 => self.begin(step, "sum(range(1000))", None),
            2 => self.begin(step, "print('x' * 2_000_000)", None),
            3 => self.begin(step, "raise ValueError('soak')", None),
            4 => self.begin(step, "import time; time.sleep(600)", Some(0.05)),
            5 => self.begin(step, "import os; os.kill(os.getpid(), 9)", None),
            6 => self.begin(
                step,
                "import subprocess; subprocess.Popen(['setsid', 'sleep', '600'])",
                None,
            ),
            7 => self.begin(
                step,
                "display({'a': 1}); import sys; print('e', file=sys.stderr)",
                None,
            ),
            8 => self.interrupt(),
            9 => self.leave(step),
            10 => self.create(step),
            _ => self.delete(),
        }
    }

    fn session(&mut self) -> String {
        let at = self.random.below(self.sessions.len());
        self.sessions[at].clone()
    }

    fn request(&mut self, step: usize, code: &str, timeout: Option<f64>) -> Value {
        let id = format!("soak-{step}");
        self.runs.push(id.clone());
        json!({"code": code, "id": id, "session": self.session(), "queue": true, "timeout": timeout})
    }

    fn begin(&mut self, step: usize, code: &str, timeout: Option<f64>) {
        let mut body = self.request(step, code, timeout);
        body["wait"] = 0.into();
        let answer = self.api.post("/exec", &body);
        assert_eq!(answer.status, 200, "{}", answer.json());
    }

    /// Follows a run and goes away in the middle.
    fn leave(&mut self, step: usize) {
        let code = "import time\nfor n in range(20): print(n); time.sleep(0.005)";
        let body = self.request(step, code, None);
        let accept = ("Accept", "application/x-ndjson");
        let mut events = self.api.connect().events("POST", "/exec", &[accept], &body);
        assert!(events.next().is_some());
    }

    fn interrupt(&mut self) {
        let body = json!({"session": self.session()});
        let answer = self.api.post("/interrupt", &body);
        assert_eq!(answer.status, 200, "{}", answer.json());
    }

    fn create(&mut self, step: usize) {
        if self.sessions.len() < 5 {
            let name = format!("soak-{step}");
            let answer = self.api.post("/sessions", &json!({"name": name}));
            assert_eq!(answer.status, 200, "{}", answer.json());
            self.sessions.push(name);
        }
    }

    fn delete(&mut self) {
        if self.sessions.len() > 1 {
            let at = 1 + self.random.below(self.sessions.len() - 1);
            let path = format!("/sessions/{}", self.sessions.remove(at));
            let answer = self.api.connect().send("DELETE", &path, &[], b"");
            assert_eq!(answer.status, 200, "{}", answer.json());
        }
    }

    /// Every run has ended, once, and stays ended.
    fn end(&mut self, steps: usize) {
        for id in &self.runs {
            let found = self.api.get(&format!("/exec/{id}?wait=60&offset=0"));
            if found.status == 404 {
                assert!(steps > STEPS, "run {id} is lost");
                continue;
            }
            let found = found.json();
            let events = found["events"].as_array().unwrap();
            let ends: Vec<&Value> = events.iter().filter(|e| e["type"] == "done").collect();
            assert_eq!(ends.len(), 1, "{id}: {found}");
            assert_ne!(found["status"], "running");
            assert_eq!(ends[0]["reply"]["status"], found["status"]);
        }
        while self.sessions.len() > 1 {
            self.delete();
        }
        // What runs have left in the background ends with the kernel.
        let answer = self.api.post("/restart", &json!({}));
        assert_eq!(answer.status, 200, "{}", answer.json());
    }
}
