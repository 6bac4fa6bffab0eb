//! A fault campaign: processes, the container and the engine's commands end what works, while clients keep it busy.
//! After each fault everything that was acknowledged is still true: runs, generations, and what a reply says of its
//! namespace; and no run is executed twice.
//!
//! The faults and the load are drawn from a seed, which is printed; `OSCTL_TEST_SEED` draws the same.

use crate::campaign_faults::{Fault, Kind, Session, block, harm};
use crate::campaign_load::{CLIENTS, Client, Load, SHARED, STORED, newest_of, random};
use crate::campaign_record::{Restored, Verdict, agree};
use crate::durable_runs::ask;
use crate::evolve::{configure, small};
use crate::harness::TEST_TIMEOUT;
use crate::mutations::seed;
use crate::soak::{Random, print_line};
use crate::trials;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

trials![
    two_hundred_faults_leave_what_was_acknowledged,
    two_thousand_faults_leave_what_was_acknowledged =
        "campaign::two_hundred_faults_leave_what_was_acknowledged",
];

/// Generations that are kept under each name.
const KEPT: u64 = 64;

/// The promise: all sessions answer again within a minute. It begins at the end of `up` or of the evolve, if the fault
/// is one.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// The session that generations are reloaded into.
const CHECKS: &str = "checks";

fn two_hundred_faults_leave_what_was_acknowledged() {
    campaign(1);
}

fn two_thousand_faults_leave_what_was_acknowledged() {
    campaign(10);
}

fn campaign(blocks: usize) {
    let seed = seed();
    print_line(&format!("OSCTL_TEST_SEED={seed}"));
    let home = small("it-campaign");
    configure(
        &home,
        &format!("cryo:\n  keep: {KEPT}\nevolve:\n  start: 30\n  grace: 2\n  watch_period: 1\n"),
    );
    home.up();
    let load = Load::new(&home);
    let mut campaign = Campaign {
        load: &load,
        // How many checks there are depends on time, and the faults do not.
        faults: random("faults", seed),
        checks: random("checks", seed),
        probe: Client::new("probe", seed),
        generations: BTreeMap::new(),
        values: BTreeMap::new(),
        read: 0,
        times: BTreeMap::new(),
        moments: (0, 0),
        evolves: (0, 0),
        began: Instant::now(),
        step: 0,
    };
    let done = thread::scope(|scope| {
        let _end = load.end_with_this();
        for number in 0..CLIENTS {
            let load = &load;
            scope.spawn(move || load.carry(number, seed));
        }
        campaign.strike_all(blocks)
    });
    let done = done.and_then(|()| campaign.conclude());
    let why = load.violation().or(done.err());
    campaign.tell_counts();
    if let Some(why) = why {
        let (step, story) = (campaign.step, load.record().story());
        panic!("OSCTL_TEST_SEED={seed} step {step}: {why}\n{story}");
    }
    home.down();
}

struct Campaign<'a> {
    load: &'a Load<'a>,
    faults: Random,
    checks: Random,
    probe: Client,
    /// The kernel generation of each session after the last fault.
    generations: BTreeMap<&'static str, u64>,
    /// What generations were found to hold.
    values: BTreeMap<(String, u64), u64>,
    /// Bytes of the lines that were read.
    read: u64,
    times: BTreeMap<Kind, Vec<Duration>>,
    /// Faults that came at their moment, of all.
    moments: (usize, usize),
    /// Evolves that replaced the container, of all.
    evolves: (usize, usize),
    began: Instant,
    step: usize,
}

impl Campaign<'_> {
    fn strike_all(&mut self, blocks: usize) -> Verdict {
        for session in [SHARED, STORED] {
            let generation = self.answered(session)?;
            self.generations.insert(session, generation);
        }
        for _ in 0..blocks {
            for fault in block(&mut self.faults) {
                self.step += 1;
                self.strike(fault)?;
                self.check(2)?;
                self.load.look()?;
            }
        }
        Ok(())
    }

    /// One fault, and what has become of the sessions when they answer again.
    fn strike(&mut self, fault: Fault) -> Verdict {
        let Fault {
            kind,
            moment,
            later,
            ..
        } = fault;
        self.moments.0 += usize::from(self.load.wait_for(moment));
        self.moments.1 += 1;
        thread::sleep(later);
        let begin = Instant::now();
        let sessions = [SHARED, STORED].map(|name| {
            let generation = self.generations.get(name).copied().unwrap_or_default();
            let pid = self.load.record().life(name, generation).pid;
            Session { name, pid }
        });
        let hit = harm(self.load, fault, sessions)?;
        let harmed = Instant::now();
        if kind == Kind::Evolve {
            self.evolves.0 += usize::from(!hit.is_empty());
            self.evolves.1 += 1;
        }
        let step = self.step;
        let event = format!("step {step}: {kind:?} at {moment:?} and {later:?}, hits {hit:?}");
        self.load.record().note(event);
        for session in [SHARED, STORED] {
            let before = self.generations.get(session).copied().unwrap_or_default();
            // A process that was killed may answer once more.
            let mut now = self.answered(session)?;
            while hit.contains(&session) && now == before && begin.elapsed() < TEST_TIMEOUT {
                now = self.answered(session)?;
            }
            self.generations.insert(session, now);
            self.compare_lives(session, (before, now), kind, hit.contains(&session))?;
        }
        let took = begin.elapsed();
        agree(harmed.elapsed() < RECOVERY_TIMEOUT, || {
            format!("{kind:?}: all answer only after {took:.2?}")
        })?;
        let event = format!("all answer after {took:.2?}: {:?}", self.generations);
        self.load.record().note(event);
        self.times.entry(kind).or_default().push(took);
        Ok(())
    }

    /// The generation of the kernel that answers.
    fn answered(&mut self, session: &'static str) -> Verdict<u64> {
        let begin = Instant::now();
        loop {
            self.load.look()?;
            let counted = self.load.count(&mut self.probe, session, 0, &json!({}))?;
            if let Some(counted) = counted {
                return Ok(counted.generation);
            }
            agree(begin.elapsed() < TEST_TIMEOUT, || {
                format!("{session} does not answer")
            })?;
        }
    }

    /// A session that was not hit keeps running; one whose process was hit is empty, or has the acknowledged state.
    fn compare_lives(
        &self,
        session: &str,
        (before, now): (u64, u64),
        kind: Kind,
        is_hit: bool,
    ) -> Verdict {
        let record = self.load.record();
        let (old, new) = (record.life(session, before), record.life(session, now));
        let from = new.restored.as_ref();
        let is_true = match (is_hit, kind.ends_container()) {
            (false, _) => now == before,
            (true, false) => now > before && new.base == 0 && from.is_none(),
            (true, true) => {
                let is_newest = |least| {
                    from.is_some_and(|from| from.name == session && from.generation >= least)
                };
                now > before && old.stored.is_none_or(is_newest)
            }
        };
        agree(is_true, || {
            format!(
                "{session} was generation {before} with {:?} stored, and is generation {now}, from {from:?}",
                old.stored
            )
        })?;
        let missing = old.top().saturating_sub(new.base);
        let is_counted = |from: &Restored| {
            let at_most = record.sent_since(session, from.generation);
            from.runs_after
                .is_some_and(|runs| (missing..=at_most).contains(&runs))
        };
        agree(from.is_none_or(is_counted) || !is_hit, || {
            format!("{session}: {missing} acknowledged runs are missing, and it says {from:?}")
        })
    }

    /// Everything that was acknowledged. Each name has at most `reloads` reloads of generations not yet reloaded.
    fn check(&mut self, reloads: usize) -> Verdict {
        self.check_lines()?;
        self.check_runs()?;
        self.check_stores(reloads)?;
        let restored = self.load.record().take_restored();
        for (base, from) in restored {
            let held = self.value(&from.name, from.generation)?;
            agree(held == base, || {
                format!("restored with {base} from what holds {held}: {from:?}")
            })?;
            let record = self.load.record();
            let stored = record.stores.get(&(from.name.clone(), from.generation));
            let is_same = stored.is_none_or(|stored| stored.created == from.created);
            agree(is_same, || {
                format!("{stored:?} was stored at another time: {from:?}")
            })?;
        }
        Ok(())
    }

    fn check_lines(&mut self) -> Verdict {
        let told = self.load.record().take_unread();
        let Ok(file) = fs::File::open(self.load.home.files().join("lines")) else {
            return Ok(());
        };
        let length = file.metadata().unwrap().len();
        let mut bytes = vec![0; usize::try_from(length - self.read).unwrap()];
        file.read_exact_at(&mut bytes, self.read).unwrap();
        // The last one may be on its way.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n');
        bytes.truncate(whole.map_or(0, |at| at + 1));
        self.read += bytes.len() as u64;
        let text = String::from_utf8(bytes).unwrap();
        self.load.record().read_lines(&text, told)
    }

    fn check_runs(&mut self) -> Verdict {
        for (path, list) in [("/exec", "/exec"), ("/shell", "/shell/runs")] {
            let listable = self.load.record().listable(path);
            let list = self.get(list)?;
            let ended = self.load.record().compare(path, listable, &list)?;
            for sent in ended {
                let had_ended = self.load.record().has_ended(&sent.id);
                let reply = self.get(&format!("{path}/{}", sent.id))?;
                self.load.record().record_reply(&sent, &reply, had_ended)?;
            }
        }
        Ok(())
    }

    fn get(&self, path: &str) -> Verdict<Value> {
        match ask(&self.load.api, "GET", path, &Value::Null) {
            Some((200, reply)) => Ok(reply),
            other => Err(format!("{path}: {other:?}")),
        }
    }

    fn check_stores(&mut self, reloads: usize) -> Verdict {
        for name in [SHARED, STORED] {
            let newest = newest_of(&self.load.folder(name));
            let all: Vec<_> = {
                let mut record = self.load.record();
                record
                    .stores
                    .retain(|(of, number), _| of != name || number + KEPT > newest);
                let of_name = record.stores.iter().filter(|((of, _), _)| of == name);
                of_name
                    .map(|((_, number), stored)| (*number, stored.clone()))
                    .collect()
            };
            for (number, stored) in &all {
                let found = self.load.digest(name, *number);
                // Newer generations may exist by now.
                let is_kept = || number + KEPT > newest_of(&self.load.folder(name));
                agree(found == Some(stored.digest) || !is_kept(), || {
                    format!("generation {number} of {name} is another than {stored:?}")
                })?;
            }
            let new = all
                .iter()
                .rev()
                .filter(|(_, stored)| stored.value.is_none());
            let mut chosen: Vec<u64> = new.map(|(number, _)| *number).take(reloads).collect();
            if !all.is_empty() {
                chosen.push(all[self.checks.below(all.len())].0);
            }
            for number in chosen {
                self.values.remove(&(name.to_owned(), number));
                let value = match self.value(name, number) {
                    // It has been removed since for newer ones.
                    Err(_) if number + KEPT <= newest_of(&self.load.folder(name)) => continue,
                    value => value?,
                };
                let mut record = self.load.record();
                let Some(stored) = record.stores.get_mut(&(name.to_owned(), number)) else {
                    continue;
                };
                let is_same = stored.value.is_none_or(|before| before == value);
                let is_true = (stored.least..=stored.most).contains(&value);
                agree(is_same && is_true, || {
                    format!("generation {number} of {name} holds {value}: {stored:?}")
                })?;
                stored.value = Some(value);
                record.count("generations reloaded");
            }
        }
        Ok(())
    }

    /// What a generation brings into another session.
    fn value(&mut self, name: &str, generation: u64) -> Verdict<u64> {
        let key = (name.to_owned(), generation);
        if let Some(value) = self.values.get(&key) {
            return Ok(*value);
        }
        let request = json!({"session": CHECKS, "name": name, "generation": generation});
        self.done("/cryo/reload", &request)?;
        // Nothing is left for the next one.
        let code = "globals().pop('counter', 0)";
        let id = format!("check-{}-{name}-{generation}", self.step);
        // It counts among the runs that are kept.
        let _ = self.load.record().send(id, "/exec", CHECKS, None);
        let request = json!({"code": code, "session": CHECKS, "queue": true});
        let reply = self.done("/exec", &request)?;
        let value = reply["result"].as_str().and_then(|text| text.parse().ok());
        let value = value.ok_or_else(|| format!("generation {generation} of {name}: {reply}"))?;
        self.values.insert(key, value);
        Ok(value)
    }

    /// The answer of a session that no client uses.
    fn done(&self, path: &str, request: &Value) -> Verdict<Value> {
        let begin = Instant::now();
        loop {
            match ask(&self.load.api, "POST", path, request) {
                Some((200, reply)) => return Ok(reply),
                Some((404, reply)) if reply["error"]["type"] == "unknown_session" => {
                    self.load.create(CHECKS);
                }
                Some((429 | 503, _)) if begin.elapsed() < TEST_TIMEOUT => {
                    thread::sleep(Duration::from_millis(10));
                }
                other => return Err(format!("{path} {request}: {other:?}")),
            }
        }
    }

    /// When the load has ended, every acknowledged run ends, too, and every generation is what was acknowledged.
    fn conclude(&mut self) -> Verdict {
        for path in ["/exec", "/shell"] {
            let listable = self.load.record().listable(path);
            for (sent, _) in listable.into_iter().filter(|(_, had_ended)| !had_ended) {
                let reply = self.get(&format!("{path}/{}?wait=60", sent.id))?;
                let end = self.load.record().record_reply(&sent, &reply, false)?;
                agree(end.is_some(), || format!("it has no end: {reply}"))?;
            }
        }
        let (met, all) = self.moments;
        agree(met * 10 > all * 9, || {
            format!("{met} of {all} faults came at their moment")
        })?;
        let (replaced, all) = self.evolves;
        agree(replaced * 2 >= all, || {
            format!("{replaced} of {all} evolves replaced the container")
        })?;
        self.check(usize::MAX)
    }

    fn tell_counts(&mut self) {
        for (kind, times) in &mut self.times {
            times.sort_unstable();
            let (middle, longest) = (times[times.len() / 2], times[times.len() - 1]);
            print_line(&format!(
                "{kind:?}: {} times, back after {middle:.2?}, at most {longest:.2?}",
                times.len()
            ));
        }
        let counts = self.load.record().counts.clone();
        let counts: Vec<String> = counts
            .iter()
            .map(|(what, count)| format!("{what}: {count}"))
            .collect();
        let took = self.began.elapsed();
        print_line(&format!("{took:.1?}; {}", counts.join(", ")));
    }
}
