//! What an instance has acknowledged in a fault campaign: what it says later has to agree.
//!
//! Every run of code counts one up in its session and says where the counter began in this process, so that a reply
//! shows which life of the namespace it is of, and what that life was restored from.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// A violation, in words.
pub(crate) type Verdict<T = ()> = Result<T, String>;

pub(crate) fn agree(is_so: bool, why: impl FnOnce() -> String) -> Verdict {
    match is_so {
        true => Ok(()),
        false => Err(why()),
    }
}

/// The last events that the report of a violation shows.
const STORY: usize = 60;

/// Runs of each kind that the companion keeps, less those that are on their way.
const KEPT_RUNS: usize = 200;

/// A run that was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) id: String,
    /// `/exec` or `/shell`.
    pub(crate) path: &'static str,
    pub(crate) session: &'static str,
    /// The kernel generation that its client saw last.
    pub(crate) seen: Option<u64>,
    /// What was acknowledged when it was sent.
    pub(crate) before: Before,
    /// How many of its kind came before it.
    number: usize,
}

/// The newest life of a session that is known, and its counter.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before {
    pub(crate) generation: u64,
    pub(crate) top: u64,
    /// How many runs were sent to the session.
    pub(crate) sent: u64,
}

/// What a completed run of code says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    pub(crate) generation: u64,
    pub(crate) value: u64,
}

#[derive(Debug)]
struct Acknowledged {
    sent: Sent,
    end: Option<Value>,
}

/// One life of a session's namespace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Life {
    /// What its counter began with.
    pub(crate) base: u64,
    values: BTreeSet<u64>,
    /// The newest generation that is acknowledged of it, or that it was restored from.
    pub(crate) stored: Option<u64>,
    /// Its process, as the container counts.
    pub(crate) pid: i32,
    pub(crate) restored: Option<Restored>,
}

impl Life {
    pub(crate) fn top(&self) -> u64 {
        self.values.last().copied().unwrap_or(self.base)
    }
}

/// What a reply said of where a life comes from.
#[derive(Debug, Clone)]
pub(crate) struct Restored {
    pub(crate) name: String,
    pub(crate) generation: u64,
    pub(crate) created: Value,
    pub(crate) runs_after: Option<u64>,
    is_compared: bool,
}

/// A generation that is acknowledged, or was restored.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) created: Value,
    /// The counter is at least this.
    pub(crate) least: u64,
    /// And at most this.
    pub(crate) most: u64,
    /// Of its files, when it was acknowledged.
    pub(crate) digest: u64,
    /// How many runs were sent to the session before the store was.
    pub(crate) sent: u64,
    /// What a reload has shown.
    pub(crate) value: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Record {
    runs: BTreeMap<String, Acknowledged>,
    begun: BTreeMap<&'static str, usize>,
    sent: BTreeMap<String, u64>,
    lives: BTreeMap<String, BTreeMap<u64, Life>>,
    pub(crate) stores: BTreeMap<(String, u64), Stored>,
    lines: BTreeSet<String>,
    /// Completed, and not yet looked for in the file.
    unread: Vec<String>,
    /// How often what happened.
    pub(crate) counts: BTreeMap<String, usize>,
    /// What happened last.
    story: VecDeque<(Instant, String)>,
}

impl Record {
    pub(crate) fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    pub(crate) fn note(&mut self, event: String) {
        self.story.push_back((Instant::now(), event));
        if self.story.len() > STORY {
            self.story.pop_front();
        }
    }

    pub(crate) fn story(&self) -> String {
        let lines = self.story.iter().map(|(time, event)| {
            let ago = time.elapsed().as_secs_f64();
            format!("{ago:8.3} s ago: {event}\n")
        });
        lines.collect()
    }

    pub(crate) fn send(
        &mut self,
        id: String,
        path: &'static str,
        session: &'static str,
        seen: Option<u64>,
    ) -> Sent {
        let number = self.begun.entry(path).or_default();
        *number += 1;
        let number = *number;
        *self.sent.entry(session.into()).or_default() += 1;
        Sent {
            id,
            path,
            session,
            seen,
            number,
            before: self.before(session),
        }
    }

    pub(crate) fn before(&self, session: &str) -> Before {
        let newest = self.lives.get(session).and_then(BTreeMap::last_key_value);
        let sent = self.sent.get(session).copied().unwrap_or_default();
        newest.map_or_else(Before::default, |(generation, life)| Before {
            generation: *generation,
            top: life.top(),
            sent,
        })
    }

    /// The most runs that can have come after that generation was stored.
    pub(crate) fn sent_since(&self, session: &str, generation: u64) -> u64 {
        let stored = self.stores.get(&(session.to_owned(), generation));
        let now = self.sent.get(session).copied().unwrap_or_default();
        now - stored.map_or(0, |stored| stored.sent)
    }

    pub(crate) fn life(&self, session: &str, generation: u64) -> Life {
        let lives = self.lives.get(session);
        let life = lives.and_then(|lives| lives.get(&generation));
        life.cloned().unwrap_or_default()
    }

    pub(crate) fn has_ended(&self, id: &str) -> bool {
        self.runs.get(id).is_some_and(|run| run.end.is_some())
    }

    /// Records a reply about a run; returns the end, if the run has ended.
    ///
    /// # Errors
    /// When an earlier answer differs; `had_ended` is from before the request.
    pub(crate) fn record_reply(
        &mut self,
        sent: &Sent,
        reply: &Value,
        had_ended: bool,
    ) -> Verdict<Option<Option<Counted>>> {
        let status = reply["status"].as_str().unwrap_or_default();
        agree(reply["id"] == *sent.id, || {
            format!("{sent:?} is answered: {reply}")
        })?;
        agree(reply["durable"] == true, || {
            format!("it is not recorded: {reply}")
        })?;
        let known = self.runs.entry(sent.id.clone());
        let run = known.or_insert_with(|| Acknowledged {
            sent: sent.clone(),
            end: None,
        });
        if status == "running" {
            let why = || format!("{} had ended, and runs: {reply}", sent.id);
            return agree(!had_ended, why).map(|()| None);
        }
        let end = essence(reply);
        if let Some(known) = &run.end {
            agree(*known == end, || {
                format!("the end of {} was {known}, and is {end}", sent.id)
            })?;
            return Ok(Some(None));
        }
        let is_known = ["completed", "failed", "interrupted", "lost"].contains(&status);
        agree(is_known, || format!("an unknown end: {reply}"))?;
        run.end = Some(end);
        self.count(format!("{} {status}", sent.path));
        if status != "completed" {
            self.note(format!("{} {}: {reply}", sent.path, sent.id));
        }
        let is_shell = sent.path == "/shell";
        if status != "completed" || (is_shell && reply["returncode"] != 0) {
            return Ok(Some(None));
        }
        self.unread.push(sent.id.clone());
        match is_shell {
            true => Ok(Some(None)),
            false => self
                .completed(sent, reply)
                .map(|counted| Some(Some(counted))),
        }
    }

    /// The counter goes up in one life, and what a life began with is what its replies say.
    fn completed(&mut self, sent: &Sent, reply: &Value) -> Verdict<Counted> {
        let Sent { seen, before, .. } = *sent;
        let numbers = reply["result"].as_str().unwrap_or_default();
        let numbers = numbers.trim_matches(['(', ')']).split(", ");
        let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
        let generation = reply["kernel"]["generation"].as_u64();
        let ([value, base, pid], Some(generation)) = (&numbers[..], generation) else {
            return Err(format!("not what the code says: {reply}"));
        };
        let (value, base) = (*value, *base);
        let state = reply["kernel"]["state"].as_str().unwrap_or_default();
        let is_newer = seen.is_none_or(|seen| seen < generation);
        let is_true = match state {
            "kept" => seen.is_none_or(|seen| seen == generation),
            "lost" => is_newer && base == 0,
            "restored" => is_newer,
            _ => false,
        };
        agree(is_true && generation >= before.generation, || {
            format!("after {before:?}, seen {seen:?}: {reply}")
        })?;
        let lives = self.lives.entry(sent.session.into()).or_default();
        let is_new = !lives.contains_key(&generation);
        let life = lives.entry(generation).or_insert_with(|| Life {
            base,
            pid: i32::try_from(*pid).unwrap_or_default(),
            ..Life::default()
        });
        agree(life.base == base, || {
            format!("this life began with {}: {reply}", life.base)
        })?;
        let rises = generation > before.generation || value > before.top;
        agree(rises && value > base && life.values.insert(value), || {
            format!("the counter was {before:?}, or {value} before: {reply}")
        })?;
        if state == "restored" && life.restored.is_none() {
            let from = &reply["kernel"]["restored_from"];
            let of = from["generation"].as_u64();
            let of = of.ok_or_else(|| format!("it does not say from where: {reply}"))?;
            agree(from["lost_unexpectedly"] == 0, || {
                format!("something is lost: {reply}")
            })?;
            life.stored = life.stored.max(Some(of));
            life.restored = Some(Restored {
                name: from["name"].as_str().unwrap_or_default().into(),
                generation: of,
                created: from["created"].clone(),
                runs_after: from["runs_after"].as_u64(),
                is_compared: false,
            });
        }
        let from = life.restored.clone();
        if is_new {
            self.count(format!("namespaces {state}"));
            self.note(format!(
                "{} is generation {generation}, {state} from {from:?}: {numbers:?}",
                sent.session
            ));
        }
        Ok(Counted { generation, value })
    }

    /// Takes the acknowledgement of a store.
    pub(crate) fn stored(
        &mut self,
        name: &str,
        (number, kernel): (u64, u64),
        stored: Stored,
    ) -> Verdict {
        self.count("stores acknowledged");
        self.note(format!(
            "{name} generation {number} of kernel {kernel}: {stored:?}"
        ));
        let life = self.lives.entry(name.into()).or_default();
        if let Some(life) = life.get_mut(&kernel) {
            life.stored = life.stored.max(Some(number));
        }
        match self.stores.insert((name.into(), number), stored) {
            None => Ok(()),
            Some(other) => Err(format!(
                "generation {number} of {name} was given twice, before as {other:?}"
            )),
        }
    }

    /// Lines that have come to the file since it was read last; `told` was completed before it was read.
    pub(crate) fn read_lines(&mut self, text: &str, told: Vec<String>) -> Verdict {
        for line in text.lines() {
            agree(self.lines.insert(line.into()), || {
                format!("{line} was executed twice")
            })?;
        }
        for id in told {
            agree(self.lines.contains(&id), || {
                format!("{id} is completed and has no line")
            })?;
        }
        Ok(())
    }

    pub(crate) fn take_unread(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unread)
    }

    /// The runs that a list has to show: acknowledged before it was asked for.
    pub(crate) fn listable(&self, path: &str) -> Vec<(Sent, bool)> {
        let all = self.runs.values().filter(|run| run.sent.path == path);
        all.map(|run| (run.sent.clone(), run.end.is_some()))
            .collect()
    }

    /// Compares a list with those; the runs that have ended by it, and some that had before.
    pub(crate) fn compare(
        &mut self,
        path: &'static str,
        listable: Vec<(Sent, bool)>,
        list: &Value,
    ) -> Verdict<Vec<Sent>> {
        let mut listed: BTreeMap<&str, &str> = BTreeMap::new();
        for run in list["runs"].as_array().into_iter().flatten() {
            let (id, status) = (run["id"].as_str(), run["status"].as_str());
            let (id, status) = (id.unwrap_or_default(), status.unwrap_or_default());
            agree(listed.insert(id, status).is_none(), || {
                format!("{id} is listed twice")
            })?;
        }
        // Others may have come since the list was asked for, and made the oldest be forgotten.
        let begun = self.begun.get(path).copied().unwrap_or_default();
        let mut ended = Vec::new();
        for (sent, had_ended) in listable {
            if sent.number + KEPT_RUNS < begun {
                self.runs.remove(&sent.id);
                continue;
            }
            let Some(status) = listed.get(&*sent.id) else {
                return Err(format!("{} was acknowledged and is not listed", sent.id));
            };
            let end = self.runs.get(&sent.id).and_then(|run| run.end.as_ref());
            let is_same = match end {
                Some(end) if had_ended => end["status"] == **status,
                _ => true,
            };
            agree(is_same, || {
                format!("{} is listed as {status}, and was {end:?}", sent.id)
            })?;
            if *status != "running" && (!had_ended || sent.number % 8 == begun % 8) {
                ended.push(sent);
            }
        }
        Ok(ended)
    }

    /// The lives whose origin was not compared with what the generation holds.
    pub(crate) fn take_restored(&mut self) -> Vec<(u64, Restored)> {
        let lives = self.lives.values_mut().flat_map(BTreeMap::values_mut);
        let mut found = Vec::new();
        for life in lives {
            let base = life.base;
            if let Some(restored) = life.restored.as_mut().filter(|from| !from.is_compared) {
                restored.is_compared = true;
                found.push((base, restored.clone()));
            }
        }
        found
    }
}

/// The part of an end that is the same for every caller.
fn essence(reply: &Value) -> Value {
    let mut end = reply.clone();
    if let Some(end) = end.as_object_mut() {
        // It depends on what the caller has seen, and of a lost run on the kernel that is there.
        end.remove("kernel");
    }
    end
}
