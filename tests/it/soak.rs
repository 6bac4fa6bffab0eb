//! A soak test: random mixes of runs, interrupts, disconnects, crashes and sessions, after
//! which every run has one end and nothing is left over.
//!
//! The seed is printed; `OSCTL_SOAK_SEED` replays its mix, `OSCTL_SOAK_STEPS` makes it longer.

use crate::harness::{Api, Events, TEST_TIMEOUT, shared};
use crate::trials;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

trials![a_random_mix_leaves_nothing_behind];

/// Few enough that every run can still be found at the end.
const STEPS: usize = 240;

/// Output of which memory keeps a megabyte, and a file keeps the rest.
const PRINTED: &str = "print('x' * 2_000_000)";

/// More of these runs than are kept.
const WARM_UP_RUNS: usize = 40;

/// The resources of the whole container, counted inside: every process, the descriptors of the lasting processes,
/// memory that belongs to no file, and the files on disk. Bytes are KiB.
const RESOURCES: &str = r"
import json, os
def words(pid):
    try: return open(f'/proc/{pid}/cmdline').read().split('\0')[:-1]
    except OSError: return None
def anonymous(pid):
    lines = dict(line.split(':', 1) for line in open(f'/proc/{pid}/status'))
    return int(lines['RssAnon'].split()[0])
def within(*folders):
    return sum(len(files) for folder in folders for _, _, files in os.walk(folder))
def outputs():
    # The journal's segments come and go with the bytes that are in them.
    return sum(not name.startswith('journal-') for _, _, files in os.walk('/data/runs') for name in files)
def container():
    second = os.path.exists('/sys/fs/cgroup/memory.stat')
    stat = '/sys/fs/cgroup/memory.stat' if second else '/sys/fs/cgroup/memory/memory.stat'
    lines = dict(line.split() for line in open(stat))
    names = ('anon', 'shmem') if second else ('total_rss', 'total_shmem')
    return sum(int(lines[name]) for name in names) >> 10
processes = {p: w for p in os.listdir('/proc') if p.isdigit() and (w := words(p)) is not None}
def those(is_one): return [pid for pid, w in processes.items() if is_one(w)]
def parent(pid): return open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[1]
def fds(pids): return sum(len(os.listdir(f'/proc/{pid}/fd')) for pid in pids)
[companion] = those(lambda w: w[1:2] == ['companion'])
# Kernels are forked of the template, whose parent alone is the companion.
forked = those(lambda w: '--template' in w)
[template] = [pid for pid in forked if parent(pid) == companion]
guards = those(lambda w: w[1:2] == ['reaper'])
print(json.dumps({
    'processes': len(processes),
    'companion_fds': fds([companion]),
    'template_fds': fds([template]),
    'kernel_fds': fds([pid for pid in forked if pid != template] + guards),
    'kernels': within('/run/osctl/kernels'),
    'sockets': within('/run/osctl'),
    'outputs': outputs(),
    'temporary': within('/tmp', '/dev/shm'),
    'companion_memory': anonymous(companion),
    'template_memory': anonymous(template),
    'other_memory': container() - anonymous(companion),
    'names': sorted(' '.join(w) for w in processes.values()),
}))
";

/// `None` when a process ended during the count.
fn resources(api: &Api) -> Option<Value> {
    let reply = api.exec(RESOURCES);
    serde_json::from_str(reply["stdout"].as_str().unwrap()).ok()
}

/// Pseudo-random numbers that repeat for a seed (xorshift64*, Vigna 2016).
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

pub(crate) fn env_number(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name).ok();
    said.map_or(otherwise, |text| text.parse().unwrap())
}

fn a_random_mix_leaves_nothing_behind() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = env_number("OSCTL_SOAK_SEED", u64::from(now.subsec_nanos()) | 1);
    let steps = env_number("OSCTL_SOAK_STEPS", STEPS as u64) as usize;
    print_line(&format!("OSCTL_SOAK_SEED={seed} OSCTL_SOAK_STEPS={steps}"));
    let api = shared().api();
    let before = baseline(&api);
    let mut mix = RandomMix {
        api: &api,
        // A zero state stays zero forever.
        random: Random(seed.max(1)),
        sessions: vec!["default".into()],
        runs: Vec::new(),
        followers: Vec::new(),
    };
    for step in 0..steps {
        mix.step(step);
    }
    mix.end(steps);
    let begin = Instant::now();
    while let Some(what) = surplus(&before, &idle_resources(&api)) {
        // A kernel may need seconds to end, and free memory is returned every ten seconds.
        assert!(begin.elapsed() < TEST_TIMEOUT, "{what} (seed {seed})");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The resource that grew by more than the tolerance. Processes, descriptors and sockets may not grow.
///
/// The outputs and the companion's memory belong to the runs that can be found, up to a budget of
/// both, which was used up before the mix. The mix prints about twenty times what memory keeps a
/// megabyte of, so a companion that did not release half of it would be noticed. The template
/// does not grow any more after many forks. Other processes may grow by what fresh
/// kernels write to of the template's pages, which is less than a megabyte; services that other tests
/// started in this container may take a few more.
fn surplus(before: &Value, after: &Value) -> Option<String> {
    let may_stay = [
        ("processes", 0),
        ("companion_fds", 0),
        ("template_fds", 0),
        ("kernel_fds", 0),
        ("sockets", 0),
        ("temporary", 0),
        // The newest run stays, whatever its size.
        ("outputs", 4),
        ("companion_memory", 10 << 10),
        ("template_memory", 256),
        ("other_memory", 8 << 10),
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
pub(crate) fn print_line(line: &str) {
    println!("{line}");
}

/// The resources before the mix, in the usual state: as many outputs as are kept, and a
/// default kernel that has just started, as at the end.
fn baseline(api: &Api) -> Value {
    for _ in 0..WARM_UP_RUNS {
        let reply = api.exec(PRINTED);
        assert_eq!(reply["status"], "completed", "{reply}");
    }
    restart(api);
    idle_resources(api)
}

/// Ends the kernel, and with it what runs left in the background.
fn restart(api: &Api) {
    let answer = api.post("/restart", &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.json());
}

/// The resources when every session is idle, the spare kernels are ready, and the counts are stable.
fn idle_resources(api: &Api) -> Value {
    let mut last = Value::Null;
    api.until("idle resources", |api| {
        let sessions = api.get("/sessions").json();
        let all = sessions["sessions"].as_array().unwrap();
        let is_idle = |s: &Value| s["ready"] == true && s["busy"] == false;
        let left = resources(api)?;
        let moved = std::mem::replace(&mut last, left.clone());
        // Two spares in addition to the sessions' own kernels.
        let is_whole = left["kernels"] == all.len() + 2;
        let is_still = ["processes", "companion_fds", "kernel_fds", "sockets"]
            .iter()
            .all(|what| left[what] == moved[what]);
        (all.iter().all(is_idle) && is_whole && is_still).then_some(left)
    })
}

struct RandomMix<'a> {
    api: &'a Api,
    random: Random,
    sessions: Vec<String>,
    runs: Vec<String>,
    /// Streams that are read to the end of their run.
    followers: Vec<(String, Events)>,
}

impl RandomMix<'_> {
    fn step(&mut self, step: usize) {
        match self.random.below(12) {
            0 | 1 => self.begin(step, "sum(range(1000))", None),
            2 => self.begin(step, PRINTED, None),
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
            9 => self.disconnect(step),
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

    /// Follows a run and disconnects before its end.
    fn disconnect(&mut self, step: usize) {
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

    /// Every run has ended, once, and stays ended; each stream reported the same end.
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
        restart(self.api);
    }
}
