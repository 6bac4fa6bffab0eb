//! The objects of the fake engine, and what the operations on them do.

use crate::engine::{ContainerPhase, IMAGE_LABEL};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// The label of a container that is only a part of an instance, such as a trial container.
const FAKE_PART_LABEL: &str = "osctl.part";

/// Whether the companion in a container answers requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FakeAdmission {
    /// The companion was just started: it answers requests when the keeper confirms or no run places it.
    Unverified,
    Open,
    Quiesced,
}

#[derive(Debug, Clone)]
pub(crate) struct FakeContainer {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The ID of the image.
    pub(crate) image: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// As `NAME=VALUE`.
    pub(crate) env: Vec<String>,
    pub(crate) phase: ContainerPhase,
    pub(crate) admission: FakeAdmission,
    pub(crate) restarts_automatically: bool,
    pub(crate) restart_count: u64,
    pub(crate) networks: BTreeSet<String>,
    /// The ports of the host that the container was created to publish.
    pub(crate) ports: BTreeSet<u16>,
    pub(crate) exit_code: i64,
    /// Why the engine could not start the container.
    pub(crate) error: String,
}

impl FakeContainer {
    fn is_alive(&self) -> bool {
        matches!(self.phase, ContainerPhase::Running | ContainerPhase::Paused)
    }

    /// Whether it is the instance's container and not a part such as a trial.
    fn is_whole(&self) -> bool {
        !self.labels.contains_key(FAKE_PART_LABEL)
    }

    fn start_process(&mut self) {
        self.phase = ContainerPhase::Running;
        self.admission = FakeAdmission::Unverified;
        (self.exit_code, self.error) = (0, String::new());
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FakeImage {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) tags: BTreeSet<String>,
    /// Why the engine can't start a container of the image.
    pub(crate) start_error: Option<String>,
    /// The exit code with which a container of the image ends at once.
    pub(crate) exits: Option<i64>,
    /// Why the kernel of a container of the image can't start.
    pub(crate) kernel_error: Option<String>,
    /// Whether a container of the image never becomes healthy.
    pub(crate) stays_unhealthy: bool,
}

#[derive(Debug, Clone)]
pub(super) struct FakeNetwork {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) internal: bool,
}

/// A status and a message.
pub(super) type EngineRefusal = (u16, String);
type Done = Result<(), EngineRefusal>;

#[derive(Debug, Default)]
pub(crate) struct FakeEngineObjects {
    /// By ID.
    pub(crate) containers: BTreeMap<String, FakeContainer>,
    /// By ID.
    pub(crate) images: BTreeMap<String, FakeImage>,
    pub(super) networks: BTreeMap<String, FakeNetwork>,
    /// The labels of each volume by name.
    pub(super) volumes: BTreeMap<String, Value>,
    /// The archives that were put into containers, with the name of the container.
    pub(crate) archives: Vec<(String, Bytes)>,
    /// The ports of the host that other programs have.
    pub(crate) foreign_ports: BTreeSet<u16>,
    /// The lines of the next build; an `errorDetail` fails it.
    pub(crate) build_output: Vec<Value>,
    /// Whether two containers of the instance ran at the same time, which damages their data.
    pub(crate) had_two_running: bool,
    pub(super) execs: BTreeMap<String, (String, Vec<String>, Option<i64>)>,
    away_until: Option<Instant>,
    last_id: u32,
}

impl FakeEngineObjects {
    /// The words of the latest command with this verb in any container.
    pub(crate) fn last_command(&self, verb: &str) -> Option<Vec<String>> {
        // The IDs ascend.
        let mut commands = self.execs.values().rev().map(|(_, command, _)| command);
        commands
            .find(|command| command.get(1).is_some_and(|word| word == verb))
            .cloned()
    }

    /// An ID that no other object has.
    pub(super) fn new_id(&mut self) -> String {
        self.last_id += 1;
        format!("{:012x}", self.last_id)
    }

    /// The container of this name or ID.
    pub(crate) fn container(&mut self, name: &str) -> Option<&mut FakeContainer> {
        let mut all = self.containers.values_mut();
        all.find(|one| one.name == name || one.id == name)
    }

    pub(super) fn find(&mut self, name: &str) -> Result<&mut FakeContainer, EngineRefusal> {
        let missing = (404, format!("No such container: {name}"));
        self.container(name).ok_or(missing)
    }

    /// The ID of the image with this tag or ID.
    pub(crate) fn image_id(&self, name: &str) -> Option<String> {
        let mut all = self.images.iter();
        let found = all.find(|(id, image)| *id == name || image.tags.contains(name));
        found.map(|(id, _)| id.clone())
    }

    /// The engine ends and gives no answer for this time. Containers run on if they are not paused; see
    /// [`FakeEngineObjects::kill_containers`].
    pub(crate) fn leave_for(&mut self, time: Duration) {
        self.away_until = Some(Instant::now() + time);
    }

    pub(super) fn is_away(&self) -> bool {
        self.away_until.is_some_and(|until| Instant::now() < until)
    }

    /// All processes end, as with an engine that is restarted, which then starts the containers again.
    pub(crate) fn kill_containers(&mut self) {
        for id in self.ids() {
            let one = &mut self.containers[&id].clone();
            if one.is_alive() {
                one.phase = ContainerPhase::Stopped;
                (one.admission, one.exit_code) = (FakeAdmission::Unverified, 137);
                self.containers.insert(id.clone(), one.clone());
            }
        }
        for id in self.ids() {
            let restarts = self.containers[&id].restarts_automatically;
            // A container that can't be started stays as it is, with its error.
            let _ = restarts.then(|| self.start(&id));
        }
    }

    /// The process of a container ends. The engine restarts the container, if that is its policy.
    pub(crate) fn crash(&mut self, name: &str) {
        let Some(one) = self.container(name) else {
            return;
        };
        match one.restarts_automatically && one.phase != ContainerPhase::Paused {
            true => {
                one.restart_count += 1;
                one.start_process();
            }
            false => (one.phase, one.exit_code) = (ContainerPhase::Stopped, 1),
        }
    }

    fn ids(&self) -> Vec<String> {
        self.containers.keys().cloned().collect()
    }

    /// Creates a container from the request of the API.
    pub(super) fn create(&mut self, name: &str, body: &Value) -> Result<String, EngineRefusal> {
        if self.container(name).is_some() {
            return Err((409, format!("the name {name} is already in use")));
        }
        let image = body["Image"].as_str().unwrap_or_default();
        let Some(image) = self.image_id(image) else {
            return Err((404, format!("No such image: {image}")));
        };
        let host = &body["HostConfig"];
        let bindings = host["PortBindings"].as_object().into_iter().flatten();
        let ports = bindings.flat_map(|(_, bound)| bound.as_array().cloned().unwrap_or_default());
        let ports = ports.filter_map(|bound| bound["HostPort"].as_str()?.parse().ok());
        let one = FakeContainer {
            id: self.new_id(),
            name: name.into(),
            image,
            labels: serde_json::from_value(body["Labels"].clone()).unwrap_or_default(),
            env: serde_json::from_value(body["Env"].clone()).unwrap_or_default(),
            phase: ContainerPhase::Created,
            admission: FakeAdmission::Unverified,
            restarts_automatically: host["RestartPolicy"]["Name"] != "no",
            restart_count: 0,
            networks: host["NetworkMode"]
                .as_str()
                .map(str::to_owned)
                .into_iter()
                .collect(),
            ports: ports.collect(),
            exit_code: 0,
            error: String::new(),
        };
        let id = one.id.clone();
        self.containers.insert(id.clone(), one);
        Ok(id)
    }

    pub(super) fn start(&mut self, name: &str) -> Done {
        let one = self.find(name)?.clone();
        match one.phase {
            ContainerPhase::Running => return Err((304, String::new())),
            ContainerPhase::Paused => return Err((409, "cannot start a paused container".into())),
            _ => {}
        }
        let image = self.images.get(&one.image).cloned().unwrap_or_default();
        let taken = self.taken_port(&one);
        let refused = taken.err().or(image.start_error.map(|why| (500, why)));
        let one = self.find(name)?;
        if let Some((status, why)) = refused {
            (one.exit_code, one.error) = (128, why.clone());
            return Err((status, why));
        }
        one.start_process();
        if let Some(code) = image.exits {
            (one.exit_code, one.restart_count) = (code, u64::from(one.restarts_automatically));
            one.phase = match one.restarts_automatically {
                true => ContainerPhase::Restarting,
                false => ContainerPhase::Stopped,
            };
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, name: &str) -> Done {
        let one = self.find(name)?;
        match one.is_alive() || one.phase == ContainerPhase::Restarting {
            true => (one.phase, one.exit_code) = (ContainerPhase::Stopped, 143),
            false => return Err((304, String::new())),
        }
        Ok(())
    }

    pub(super) fn pause(&mut self, name: &str, pauses: bool) -> Done {
        let one = self.find(name)?;
        let (from, to) = match pauses {
            true => (ContainerPhase::Running, ContainerPhase::Paused),
            false => (ContainerPhase::Paused, ContainerPhase::Running),
        };
        if one.phase != from {
            let state = if pauses { "not running" } else { "not paused" };
            return Err((500, format!("Container {name} is {state}")));
        }
        one.phase = to;
        Ok(())
    }

    pub(super) fn rename(&mut self, name: &str, to: &str) -> Done {
        let id = self.find(name)?.id.clone();
        if let Some(holder) = self.container(to) {
            return match holder.id == id {
                true => Err((400, "same name as its current name".into())),
                false => Err((409, format!("the name {to} is already in use"))),
            };
        }
        to.clone_into(&mut self.find(name)?.name);
        Ok(())
    }

    pub(super) fn connect(&mut self, name: &str, network: &str) -> Done {
        let mut one = self.find(name)?.clone();
        if !one.networks.insert(network.into()) {
            return Err((403, "endpoint already exists".into()));
        }
        if one.is_alive() {
            self.taken_port(&one)?;
        }
        *self.find(name)? = one;
        Ok(())
    }

    pub(super) fn disconnect(&mut self, name: &str, network: &str) -> Done {
        match self.find(name)?.networks.remove(network) {
            true => Ok(()),
            false => Err((500, format!("{name} is not connected to {network}"))),
        }
    }

    /// Whether the container, as long as it runs, has its ports.
    pub(crate) fn publishes(&self, one: &FakeContainer) -> bool {
        let is_external = |network: &String| {
            let known = self.networks.get(network);
            known.is_none_or(|known| !known.internal)
        };
        one.is_alive() && one.networks.iter().any(is_external)
    }

    /// The ports of running containers, with the ID of the container.
    pub(super) fn published_ports(&self) -> BTreeMap<u16, String> {
        let running = self
            .containers
            .values()
            .filter(|one| one.phase == ContainerPhase::Running && self.publishes(one));
        let ports = running.flat_map(|one| one.ports.iter().map(|port| (*port, one.id.clone())));
        ports.collect()
    }

    /// Refuses if another program or container has a port that this container would publish.
    fn taken_port(&self, one: &FakeContainer) -> Done {
        let running = FakeContainer {
            phase: ContainerPhase::Running,
            ..one.clone()
        };
        if !self.publishes(&running) {
            return Ok(());
        }
        let others = self.containers.values();
        let others = others.filter(|other| other.id != one.id && self.publishes(other));
        let mut used: BTreeSet<u16> = others.flat_map(|other| other.ports.clone()).collect();
        used.extend(&self.foreign_ports);
        match one.ports.iter().find(|port| used.contains(port)) {
            Some(port) => {
                let why = format!("Bind for 127.0.0.1:{port} failed: port is already allocated");
                Err((500, why))
            }
            None => Ok(()),
        }
    }

    /// Removes a name, and an image without names that no container uses.
    pub(super) fn untag(&mut self, name: &str) -> Done {
        let Some(id) = self.image_id(name) else {
            return Err((404, format!("No such image: {name}")));
        };
        let is_used = self.containers.values().any(|one| one.image == id);
        let image = self.images.get_mut(&id).expect("the image was just found");
        image.tags.remove(name);
        match (image.tags.is_empty(), is_used) {
            (true, false) => drop(self.images.remove(&id)),
            (true, true) if id == name => return Err((409, "the image is in use".into())),
            _ => {}
        }
        Ok(())
    }

    /// Builds an image with these labels.
    pub(super) fn build(&mut self, tag: &str, labels: BTreeMap<String, String>) -> Vec<Value> {
        let output = std::mem::take(&mut self.build_output);
        if !output.iter().any(|line| line.get("errorDetail").is_some()) {
            let id = format!("sha256:{}", self.new_id());
            let image = FakeImage {
                labels,
                tags: [tag.to_owned()].into(),
                ..FakeImage::default()
            };
            self.images.insert(id, image);
        }
        output
    }

    pub(super) fn note_two_running(&mut self) {
        let whole = self.containers.values().filter(|one| one.is_whole());
        let running = whole.filter(|one| one.phase == ContainerPhase::Running);
        self.had_two_running |= running.count() > 1;
    }

    /// The image as `inspect` shows it.
    pub(super) fn describe_image(&self, id: &str) -> Value {
        let image = &self.images[id];
        json!({
            "Id": id,
            "RepoTags": image.tags,
            "Config": {"Labels": image.labels},
            "Labels": image.labels,
            "Size": 1,
            "Architecture": api_architecture(),
        })
    }

    /// Whether the image belongs to an instance and has no name.
    pub(super) fn is_dangling(image: &FakeImage) -> bool {
        image.tags.is_empty() && image.labels.contains_key(IMAGE_LABEL)
    }
}

/// The architecture of this machine, by Docker's name.
pub(super) fn api_architecture() -> &'static str {
    match cfg!(target_arch = "aarch64") {
        true => "arm64",
        false => "amd64",
    }
}
