//! The clients of a fault campaign: they count, run, store, repeat interrupted requests, and record acknowledged results.

use crate::campaign_record::{Before, Counted, Record, Sent, Stored, Verdict, agree};
use crate::durable_runs::{ask, send};
use crate::harness::{Api, Home, TEST_TIMEOUT};
use crate::soak::Random;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// When a fault comes: a request of this kind is in progress, or a store has come to this step on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Any,
    Store,
    Run,
    Wait,
    /// The temporary folder of the generation is there.
    Part,
    /// The generation is written, and not yet in its place.
    Manifest,
    /// The generation is in its place, and perhaps not yet acknowledged.
    Placed,
}

/// Several clients count here.
pub(crate) const SHARED: &str = "default";
/// One client counts here and stores, so that it knows the content of each generation, except a count after a fault.
pub(crate) const STORED: &str = "stored";

/// Maximum number of runs in one generation that are executed but not yet acknowledged.
const MAX_UNACKNOWLEDGED: u64 = 8;

/// One client counts and stores, one runs without waiting, one counts and now and then stores, the others count.
pub(crate) const CLIENTS: usize = 4;

/// What the clients share.
pub(crate) struct Load<'a> {
    pub(crate) home: &'a Home,
    pub(crate) api: Api,
    record: Mutex<Record>,
    violation: Mutex<Option<String>>,
    is_over: AtomicBool,
    /// The number of requests of each kind in progress.
    on: [AtomicUsize; 7],
}

/// A client with the generations that it has seen.
pub(crate) struct Client {
    name: String,
    random: Random,
    count: usize,
    seen: BTreeMap<&'static str, u64>,
}

impl Client {
    pub(crate) fn new(name: &str, seed: u64) -> Self {
        Self {
            name: name.into(),
            random: random(name, seed),
            count: 0,
            seen: BTreeMap::new(),
        }
    }

    fn is_drawn(&mut self, one_of: usize) -> bool {
        self.random.below(one_of) == 0
    }

    fn rest(&mut self, at_most: usize) {
        thread::sleep(Duration::from_millis(self.random.below(at_most) as u64));
    }
}

/// A separate sequence of random numbers for each purpose.
pub(crate) fn random(purpose: &str, seed: u64) -> Random {
    let mut hasher = DefaultHasher::new();
    (purpose, seed).hash(&mut hasher);
    // A state of zero would stay zero.
    Random(hasher.finish() | 1)
}

/// Ends the load, also by a panic.
pub(crate) struct EndOfLoad<'a>(&'a AtomicBool);

impl Drop for EndOfLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A request in progress.
struct RequestInProgress<'a>(&'a AtomicUsize);

impl Drop for RequestInProgress<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a> Load<'a> {
    pub(crate) fn new(home: &'a Home) -> Self {
        Self {
            home,
            api: home.api(),
            record: Mutex::default(),
            violation: Mutex::default(),
            is_over: AtomicBool::default(),
            on: Default::default(),
        }
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn end_with_this(&self) -> EndOfLoad<'_> {
        EndOfLoad(&self.is_over)
    }

    /// What a client has found.
    pub(crate) fn violation(&self) -> Option<String> {
        let found = self.violation.lock();
        found.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// # Errors
    /// What a client has found.
    pub(crate) fn look(&self) -> Verdict {
        match (self.violation(), self.is_over()) {
            (Some(why), _) => Err(why),
            (None, true) => Err("a client has ended".into()),
            (None, false) => Ok(()),
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Waits for a moment, which may not come while nothing works; whether it came.
    pub(crate) fn wait_for(&self, moment: Moment) -> bool {
        let begin = Instant::now();
        let newest = newest_of(&self.folder(STORED));
        while begin.elapsed() < Duration::from_secs(2) {
            let has_come = match moment {
                Moment::Any => true,
                Moment::Store | Moment::Run | Moment::Wait => {
                    self.on[moment as usize].load(Ordering::Relaxed) > 0
                }
                Moment::Part => self.part().is_some(),
                Moment::Manifest => self
                    .part()
                    .is_some_and(|part| part.join("manifest.json").exists()),
                Moment::Placed => newest_of(&self.folder(STORED)) > newest,
            };
            if has_come {
                return true;
            }
            // A step of a store takes a few milliseconds.
            thread::sleep(Duration::from_micros(200));
        }
        false
    }

    /// The temporary folder of the generation that is being stored.
    fn part(&self) -> Option<PathBuf> {
        let mut entries = fs::read_dir(self.folder(STORED)).ok()?.flatten();
        let part = entries.find(|entry| entry.path().extension().is_some_and(|end| end == "part"));
        part.map(|entry| entry.path())
    }

    fn enter(&self, moment: Moment) -> RequestInProgress<'_> {
        let on = &self.on[moment as usize];
        on.fetch_add(1, Ordering::Relaxed);
        RequestInProgress(on)
    }

    /// The load of one client, until the campaign is over.
    pub(crate) fn carry(&self, number: usize, seed: u64) {
        let _end = self.end_with_this();
        let mut client = Client::new(&format!("client-{number}"), seed);
        while !self.is_over() {
            let done = match number {
                0 => self.store(&mut client),
                1 => self.run_on(&mut client),
                // So that two stores of one name are in progress at once.
                2 if client.is_drawn(8) => self.store_shared(&mut client),
                _ => self.count_up(&mut client),
            };
            client.rest(40);
            if let Err(why) = done {
                let mut found = self
                    .violation
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                found.get_or_insert(format!("{}: {why}", client.name));
                return;
            }
        }
    }

    fn count_up(&self, client: &mut Client) -> Verdict {
        let pause = [0, 0, 5, 30][client.random.below(4)];
        self.count(client, SHARED, pause, &json!({})).map(drop)
    }

    /// A run that is acknowledged before it ends, of code or of a command.
    fn run_on(&self, client: &mut Client) -> Verdict {
        let pause = 20 + client.random.below(100);
        let wait = json!({"wait": 0});
        if client.is_drawn(2) {
            return self.count(client, SHARED, pause, &wait).map(drop);
        }
        if client.is_drawn(8) {
            return self.run_unrecorded(client);
        }
        let id = client.next_id();
        let command = format!("echo {id} >> /root/host/lines; sleep 0.{pause:03}");
        let sent = self.record().send(id, "/shell", SHARED, None);
        let mut request = json!({"command": command, "id": sent.id});
        request["wait"] = wait["wait"].clone();
        self.complete(client, &sent, &request).map(drop)
    }

    /// A run that is not recorded: the reply says so, and no death makes it another run's end.
    fn run_unrecorded(&self, client: &mut Client) -> Verdict {
        let sent = self.record().send(client.next_id(), "/shell", SHARED, None);
        let request =
            json!({"command": format!("echo {}", sent.id), "id": sent.id, "durable": false});
        let answer = ask(&self.api, "POST", sent.path, &request);
        let Some((200, reply)) = answer else {
            return Ok(());
        };
        let is_own = reply["durable"] == false && reply["id"] == *sent.id;
        let printed = reply["stdout"].as_str().unwrap_or_default().trim_end();
        let is_whole = reply["status"] != "completed" || printed == sent.id;
        agree(is_own && is_whole, || format!("{sent:?}: {reply}"))?;
        self.record().count("runs that are not recorded");
        Ok(())
    }

    /// Counts up once; nothing when the run did not complete.
    pub(crate) fn count(
        &self,
        client: &mut Client,
        session: &'static str,
        pause: usize,
        more: &Value,
    ) -> Verdict<Option<Counted>> {
        let id = client.next_id();
        // Attributes of modules are in no generation: each process sets its own.
        let code = format!(
            "began = vars(__import__('sys')).setdefault('began', globals().get('counter', 0))\n\
             with open('/root/host/lines', 'a') as lines: lines.write('{id}\\n')\n\
             __import__('time').sleep({pause} / 1000)\n\
             counter = globals().get('counter', 0) + 1\n\
             del lines\n\
             counter, began, __import__('os').getpid()"
        );
        let seen = client.seen.get(session).copied();
        let sent = self.record().send(id, "/exec", session, seen);
        let mut request = more.clone();
        request["code"] = json!(code);
        request["id"] = json!(sent.id);
        request["session"] = json!(session);
        request["queue"] = json!(true);
        if let Some(seen) = seen {
            request["seen"] = json!(seen);
        }
        let counted = self.complete(client, &sent, &request)?;
        if let Some(counted) = counted {
            let seen = client.seen.entry(session).or_default();
            *seen = counted.generation.max(*seen);
        }
        Ok(counted)
    }

    /// Asks until the run has ended, also when connections are cut.
    fn complete(
        &self,
        client: &mut Client,
        sent: &Sent,
        request: &Value,
    ) -> Verdict<Option<Counted>> {
        let begin = Instant::now();
        let mut is_acknowledged = false;
        while !self.is_over() {
            agree(begin.elapsed() < TEST_TIMEOUT, || {
                format!("{} has no end", sent.id)
            })?;
            let is_look = is_acknowledged && client.is_drawn(2);
            if !is_look && client.is_drawn(10) {
                // The connection is cut before the answer.
                let cut = send(&self.api, "POST", sent.path, request);
                client.rest(10);
                drop(cut);
            }
            let had_ended = self.record().has_ended(&sent.id);
            let answer = match is_look {
                true => {
                    let _wait = self.enter(Moment::Wait);
                    let path = format!("{}/{}?wait=0.5", sent.path, sent.id);
                    ask(&self.api, "GET", &path, &Value::Null)
                }
                false => {
                    let _run = self.enter(Moment::Run);
                    ask(&self.api, "POST", sent.path, request)
                }
            };
            match answer {
                Some((200, reply)) => {
                    is_acknowledged = true;
                    let end = self.record().record_reply(sent, &reply, had_ended)?;
                    if let Some(counted) = end {
                        self.repeat(client, sent, request)?;
                        return Ok(counted);
                    }
                    client.rest(20);
                }
                Some((404, reply)) if reply["error"]["type"] == "unknown_session" => {
                    self.create(sent.session);
                }
                Some((429 | 503, _)) | None => client.rest(20),
                Some(other) => return Err(format!("{sent:?}: {other:?}")),
            }
        }
        Ok(None)
    }

    /// A repeated request after the run's end returns the same end.
    fn repeat(&self, client: &mut Client, sent: &Sent, request: &Value) -> Verdict {
        if !client.is_drawn(4) {
            return Ok(());
        }
        match ask(&self.api, "POST", sent.path, request) {
            Some((200, reply)) => self.record().record_reply(sent, &reply, true).map(drop),
            Some((429 | 503, _)) | None => Ok(()),
            Some(other) => Err(format!("{sent:?} repeated: {other:?}")),
        }
    }

    /// Creates a session that no generation has kept.
    pub(crate) fn create(&self, session: &str) {
        let name = json!({"name": session});
        // Without an answer the next request finds out.
        let _ = ask(&self.api, "POST", "/sessions", &name);
    }

    /// Stores what one client alone knows, and now and then what several count.
    fn store(&self, client: &mut Client) -> Verdict {
        if client.is_drawn(4) {
            self.store_shared(client)?;
        }
        let Some(counted) = self.count(client, STORED, 0, &json!({}))? else {
            return Ok(());
        };
        let Counted { generation, value } = counted;
        let request = json!({"session": STORED, "seen": generation});
        let before = Before {
            generation,
            top: value,
            sent: self.record().before(STORED).sent,
        };
        // After a fault the campaign itself counts there, too.
        self.store_of(STORED, &request, before, value + 2).map(drop)
    }

    fn store_shared(&self, client: &mut Client) -> Verdict {
        let before = self.record().before(SHARED);
        for _ in 0..10 {
            if self.store_of(SHARED, &json!({"session": SHARED}), before, u64::MAX)? {
                break;
            }
            client.rest(10);
        }
        Ok(())
    }

    /// Whether it is acknowledged.
    fn store_of(
        &self,
        session: &'static str,
        request: &Value,
        before: Before,
        most: u64,
    ) -> Verdict<bool> {
        let answer = {
            let _store = (session == STORED).then(|| self.enter(Moment::Store));
            ask(&self.api, "POST", "/cryo/store", request)
        };
        let reply = match answer {
            Some((200, reply)) => reply,
            Some((status, reply)) => {
                let kind = &reply["error"]["type"];
                self.record()
                    .count(format!("stores refused with {status} {kind}"));
                return Ok(false);
            }
            None => {
                self.record().count("stores cut");
                return Ok(false);
            }
        };
        let numbers = (
            reply["generation"].as_u64(),
            reply["kernel"]["generation"].as_u64(),
        );
        let (Some(number), Some(kernel)) = numbers else {
            return Err(format!("a store without numbers: {reply}"));
        };
        let is_other = kernel != before.generation;
        let was_meant = request.get("seen").is_some();
        agree(
            kernel > before.generation && !was_meant || !is_other,
            || format!("stored of another kernel than {before:?}: {reply}"),
        )?;
        let least = if is_other { 0 } else { before.top };
        let rows = reply["receipt"].as_array();
        // On a busy machine the time of the verification may end, which the receipt says. A reload shows the value.
        let is_unverified = |row: &Value| {
            let why = row["why"].as_str().unwrap_or_default();
            row["verdict"] == "unverified" && why.contains("the verification takes more than")
        };
        let is_saved = |row: &Value| {
            row["name"] == "counter" && (row["verdict"] == "saved" || is_unverified(row))
        };
        let is_saved = rows.is_some_and(|rows| rows.iter().any(is_saved));
        // A namespace that has just begun is empty.
        agree(is_saved || least == 0, || {
            format!("the counter is not saved: {reply}")
        })?;
        let digest = self.digest(session, number);
        let digest = digest.ok_or_else(|| format!("it is not in its place: {reply}"))?;
        let mut record = self.record();
        let life = record.life(session, kernel);
        // A generation without a reply has no known bounds.
        let top = match life.pid {
            0 => u64::MAX,
            _ => life.top(),
        };
        let stored = Stored {
            created: reply["created"].clone(),
            least,
            most: most.min(top.saturating_add(MAX_UNACKNOWLEDGED)),
            digest,
            sent: before.sent,
            value: None,
        };
        record.stored(session, (number, kernel), stored)?;
        Ok(true)
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.home.data().join("cryo").join(name)
    }

    /// Of all files of a generation that say what it holds; nothing where there is none.
    pub(crate) fn digest(&self, name: &str, generation: u64) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        let folder = self.folder(name).join(generation.to_string());
        let mut files: Vec<PathBuf> = fs::read_dir(folder)
            .ok()?
            .flatten()
            .map(|e| e.path())
            .collect();
        files.sort();
        let names = ["manifest.json", "objects", "buffers"];
        for file in files
            .iter()
            .filter(|file| names.iter().any(|n| file.ends_with(n)))
        {
            (file, fs::read(file).ok()?).hash(&mut hasher);
        }
        Some(hasher.finish())
    }
}

/// The newest generation in the folder of a name.
pub(crate) fn newest_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.max().unwrap_or_default()
}

impl Client {
    fn next_id(&mut self) -> String {
        self.count += 1;
        format!("{}-{}", self.name, self.count)
    }
}
