//! A long life in short: random mixes of runs, interrupts, disconnects, deaths and sessions, after
//! which every run has one end and nothing is left over.
//!
//! The seed is printed; `OSCTL_SOAK_SEED` replays its mix, `OSCTL_SOAK_STEPS` makes it longer.

use crate::harness::{Api, Events, PATIENCE, shared};
use crate::trials;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % count
    }
}

pub(crate) fn number(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name).ok();
    said.map_or(otherwise, |text| text.parse().unwrap())
}

fn a_random_life_leaves_nothing_behind() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("OSCTL_SOAK_SEED", u64::from(now.subsec_nanos()) | 1);
    let steps = number("OSCTL_SOAK_STEPS", STEPS as u64) as usize;
    say(&format!("OSCTL_SOAK_SEED={seed} OSCTL_SOAK_STEPS={steps}"));
    let api = shared().api();
    let before = at_rest(&api);
    let mut life = Life {
        api: &api,
        // Zero would stay zero for ever.
        random: Random(seed.max(1)),
        sessions: vec!["default".into()],
        runs: Vec::new(),
        followers: Vec::new(),
    };
    for step in 0..steps {
        life.step(step);
    }
    life.end(steps);
    let begin = Instant::now();
    while let Some(what) = surplus(&before, &left(&api)) {
        // A kernel may take its seconds to go.
        assert!(begin.elapsed() < PATIENCE, "{what} (seed {seed})");
        thread::sleep(Duration::from_millis(50));
    }
}

/// What there is more of than before, beyond what may stay.
fn surplus(before: &Value, after: &Value) -> Option<String> {
    let may_stay = [
        ("processes", 0),
        ("fds", 0),
        ("sockets", 0),
        // The runs that can be found may have their output on disk.
        ("files", 40),
        ("memory", 48 << 10),
    ];
    let count = |told: &Value, what| told[what].as_u64().unwrap();
    let (what, _) = may_stay
        .into_iter()
        .find(|(what, more)| count(after, *what) > count(before, *what) + more)?;
    Some(format!("{what} are left over: {before} → {after}"))
}

#[expect(
    clippy::print_stdout,
    reason = "without its seed a failure can't be replayed"
)]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// What is there once every session is idle, the spare kernels are made, and nothing moves.
fn at_rest(api: &Api) -> Value {
    let mut last = Value::Null;
    api.until("rest", |api| {
        let sessions = api.get("/sessions").json();
        let all = sessions["sessions"].as_array().unwrap();
        let is_idle = |s: &Value| s["ready"] == true && s["busy"] == false;
        let left = left(api);
        let moved = std::mem::replace(&mut last, left.clone());
        // Two spares beside the sessions' own kernels.
        let is_whole = left["sockets"] == all.len() + 2;
        let is_still = ["processes", "fds", "sockets"]
            .iter()
            .all(|what| left[what] == moved[what]);
        (all.iter().all(is_idle) && is_whole && is_still).then_some(left)
    })
}

struct Life<'a> {
    api: &'a Api,
    random: Random,
    sessions: Vec<String>,
    runs: Vec<String>,
    /// Who follows a run to its end.
    followers: Vec<(String, Events)>,
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
        if self.random.below(4) == 0 {
            let id = body["id"].as_str().unwrap().to_owned();
            self.followers.push((id, self.follow(&body)));
            return;
        }
        body["wait"] = 0.into();
        let answer = self.api.post("/exec", &body);
        assert_eq!(answer.status, 200, "{}", answer.json());
    }

    /// Follows a run and goes away in the middle.
    fn leave(&mut self, step: usize) {
        let code = "import time\nfor n in range(20): print(n); time.sleep(0.005)";
        let body = self.request(step, code, None);
        assert!(self.follow(&body).next().is_some());
    }

    fn follow(&self, body: &Value) -> Events {
        let accept = ("Accept", "application/x-ndjson");
        self.api.connect().events("POST", "/exec", &[accept], body)
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

    /// Every run has ended, once, and stays ended; who followed it was told the same.
    fn end(&mut self, steps: usize) {
        let mut told = BTreeMap::new();
        for (id, events) in self.followers.drain(..) {
            let ends: Vec<Value> = events.filter(|e| e["type"] == "done").collect();
            assert_eq!(ends.len(), 1, "{id}: {ends:?}");
            told.insert(id, ends[0]["reply"]["status"].clone());
        }
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
            if let Some(status) = told.get(id) {
                assert_eq!(*status, found["status"], "{id}");
            }
        }
        while self.sessions.len() > 1 {
            self.delete();
        }
        // What runs have left in the background ends with the kernel.
        let answer = self.api.post("/restart", &json!({}));
        assert_eq!(answer.status, 200, "{}", answer.json());
    }
}
