//! The calls of the Docker API that the fake engine answers.

use super::objects::{EngineRefusal, FakeContainer, FakeNetwork, api_architecture};
use super::{FakeEngineObjects, FakeEngineState, FakeExecResult};
use crate::engine::ContainerPhase;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use tokio::io::AsyncWriteExt;

type Reply = Response<Full<Bytes>>;
type Answer = Result<Reply, EngineRefusal>;

/// A call with its parts.
pub(super) struct EngineCall {
    method: String,
    path: Vec<String>,
    query: BTreeMap<String, String>,
    body: Value,
    raw_body: Bytes,
    upgrade: Option<OnUpgrade>,
}

impl EngineCall {
    pub(super) async fn read(mut request: Request<Incoming>) -> io::Result<Self> {
        let path = request.uri().path().trim_matches('/');
        let path = path.split('/').map(percent_decode).collect();
        let query = read_query(request.uri());
        let method = request.method().as_str().to_owned();
        let upgrade = request.headers().contains_key("upgrade");
        let upgrade = upgrade.then(|| hyper::upgrade::on(&mut request));
        let body = request.into_body().collect().await;
        let body = body.map_err(io::Error::other)?.to_bytes();
        Ok(Self {
            method,
            path,
            query,
            // The context of a build is no JSON.
            body: serde_json::from_slice(&body).unwrap_or_default(),
            raw_body: body,
            upgrade,
        })
    }

    fn query(&self, key: &str) -> &str {
        self.query.get(key).map_or("", String::as_str)
    }

    fn parts(&self) -> (&str, Vec<&str>) {
        let path = self.path.iter().map(String::as_str).collect();
        (self.method.as_str(), path)
    }

    /// The call for tests: `start os-host`, `exec os-host health`.
    pub(super) fn describe(&self, objects: &FakeEngineObjects) -> String {
        let named = |id: &str| {
            let found = objects.containers.get(id);
            found.map_or_else(|| id.to_owned(), |found| found.name.clone())
        };
        let of_exec = |id: &str| {
            let (container, command, _) = &objects.execs[id];
            format!("{} {}", named(container), exec_verb(command))
        };
        let in_body = |key: &str| named(self.body[key].as_str().unwrap_or_default());
        let (method, path) = self.parts();
        match (method, path.as_slice()) {
            ("GET", ["containers", id, "json"]) => format!("inspect {}", named(id)),
            ("POST", ["containers", "create"]) => format!("create {}", self.query("name")),
            ("DELETE", ["containers", id]) => format!("remove {}", named(id)),
            ("POST", ["containers", id, "rename"]) => {
                format!("rename {} {}", named(id), self.query("name"))
            }
            ("POST", ["containers", id, "exec"]) => {
                let command = serde_json::from_value(self.body["Cmd"].clone());
                let command: Vec<String> = command.unwrap_or_default();
                format!("prepare-exec {} {}", named(id), exec_verb(&command))
            }
            (_, ["containers", id, what]) => format!("{what} {}", named(id)),
            ("POST", ["exec", id, "start"]) => format!("exec {}", of_exec(id)),
            ("GET", ["exec", id, "json"]) => format!("exec-result {}", of_exec(id)),
            ("POST", ["images", _, "tag"]) => {
                format!("tag {}:{}", self.query("repo"), self.query("tag"))
            }
            ("GET", ["images", "json"]) => "list-images".into(),
            ("GET", ["images", name, "json"]) => format!("inspect-image {name}"),
            ("DELETE", ["images", name]) => format!("remove-image {name}"),
            ("GET", ["containers", "json"]) => "list-containers".into(),
            ("POST", ["networks", network, what]) => {
                format!("{what} {network} {}", in_body("Container"))
            }
            (_, path) => format!("{} {}", method.to_lowercase(), path.join(" ")),
        }
    }

    /// Performs the call. `exec` replaces the result of a command.
    pub(super) fn perform(
        self,
        state: &mut FakeEngineState,
        exec: Option<FakeExecResult>,
    ) -> Reply {
        let answer = match self.path[0].as_str() {
            "containers" => self.perform_on_container(&mut state.objects),
            "exec" => return self.perform_exec(state, exec),
            "images" => self.perform_on_image(&mut state.objects),
            "networks" => self.perform_on_network(&mut state.objects),
            "volumes" => self.perform_on_volume(&mut state.objects),
            "build" => {
                let labels = serde_json::from_str(self.query("labels")).unwrap_or_default();
                let output = state.objects.build(self.query("t"), labels);
                Ok(lines(&output))
            }
            "version" => Ok(document(&json!({
                "Version": "26.1.0", "ApiVersion": "1.45", "Os": "linux", "Arch": api_architecture(),
            }))),
            "_ping" => Ok(Response::new(Full::new("OK".into()))),
            other => Err((404, format!("the fake engine has no `{other}`"))),
        };
        answer.unwrap_or_else(|(status, message)| refuse(status, &message))
    }

    fn perform_on_container(&self, objects: &mut FakeEngineObjects) -> Answer {
        let (method, path) = self.parts();
        match (method, path.as_slice()) {
            ("GET", [_, "json"]) => return Ok(document(&self.list_containers(objects))),
            ("GET", [_, id, "json"]) => {
                let found = objects.find(id)?.clone();
                return Ok(document(&describe_container(objects, &found)));
            }
            ("GET", [_, id, "logs"]) => {
                let why = format!("the log of {}\n", objects.find(id)?.name);
                return Ok(Response::new(Full::new(stream_frame(1, &why).into())));
            }
            ("POST", [_, "create"]) => {
                let id = objects.create(self.query("name"), &self.body)?;
                return Ok(document(&json!({"Id": id, "Warnings": []})));
            }
            ("POST", [_, id, "exec"]) => return self.prepare_exec(objects, id),
            ("POST", [_, id, "update"]) => {
                let policy = &self.body["RestartPolicy"]["Name"];
                objects.find(id)?.restarts_automatically = policy != "no";
                return Ok(document(&json!({"Warnings": []})));
            }
            ("PUT", [_, id, "archive"]) => {
                let name = objects.find(id)?.name.clone();
                let archive = self.raw_body.clone();
                objects.archives.push((name, archive));
                return Ok(empty(200));
            }
            ("POST", [_, id, "start"]) => objects.start(id)?,
            ("POST", [_, id, "stop"]) => objects.stop(id)?,
            ("POST", [_, id, "pause"]) => objects.pause(id, true)?,
            ("POST", [_, id, "unpause"]) => objects.pause(id, false)?,
            ("POST", [_, id, "rename"]) => objects.rename(id, self.query("name"))?,
            ("DELETE", [_, id]) => {
                let id = objects.find(id)?.id.clone();
                objects.containers.remove(&id);
            }
            _ => return Err((404, "the fake engine has no such call of containers".into())),
        }
        Ok(empty(204))
    }

    fn prepare_exec(&self, objects: &mut FakeEngineObjects, id: &str) -> Answer {
        let found = objects.find(id)?.clone();
        if found.phase != ContainerPhase::Running {
            return Err((409, format!("container {} is not running", found.name)));
        }
        let command = serde_json::from_value(self.body["Cmd"].clone()).unwrap_or_default();
        let exec = objects.new_id();
        objects
            .execs
            .insert(exec.clone(), (found.id, command, None));
        Ok(document(&json!({"Id": exec})))
    }

    fn perform_exec(self, state: &mut FakeEngineState, result: Option<FakeExecResult>) -> Reply {
        let id = &self.path[1];
        let (container, command, code) = state.objects.execs[id].clone();
        let Some(upgrade) = self.upgrade else {
            return document(&json!({"ID": id, "Running": false, "ExitCode": code}));
        };
        let companion = &state.companion;
        let result = result.unwrap_or_else(|| companion(&mut state.objects, &container, &command));
        let exec = state.objects.execs.get_mut(id);
        exec.expect("the exec was just read").2 = Some(result.code);
        let output = [
            stream_frame(1, &result.stdout),
            stream_frame(2, &result.stderr),
        ]
        .concat();
        tokio::spawn(async move {
            // A client that is gone needs no output.
            if let Ok(stream) = upgrade.await {
                let mut stream = TokioIo::new(stream);
                let _ = stream.write_all(&output).await;
                let _ = stream.shutdown().await;
            }
        });
        let mut reply = empty(101);
        let headers = reply.headers_mut();
        headers.insert("connection", "Upgrade".parse().expect("a header"));
        headers.insert("upgrade", "tcp".parse().expect("a header"));
        reply
    }

    fn perform_on_image(&self, objects: &mut FakeEngineObjects) -> Answer {
        let (method, path) = self.parts();
        match (method, path.as_slice()) {
            ("GET", [_, "json"]) => {
                let wants_dangling = self.query("filters").contains("dangling");
                let wanted = objects.images.iter();
                let wanted = wanted
                    .filter(|(_, image)| FakeEngineObjects::is_dangling(image) == wants_dangling);
                let found = wanted.map(|(id, _)| describe_listed_image(objects, id));
                Ok(document(&found.collect()))
            }
            ("GET", [_, name, "json"]) => {
                let id = objects.image_id(name);
                let id = id.ok_or_else(|| (404, format!("No such image: {name}")))?;
                Ok(document(&objects.describe_image(&id)))
            }
            ("POST", [_, name, "tag"]) => {
                let id = objects.image_id(name);
                let id = id.ok_or_else(|| (404, format!("No such image: {name}")))?;
                let tag = format!("{}:{}", self.query("repo"), self.query("tag"));
                for (other, image) in &mut objects.images {
                    match *other == id {
                        true => image.tags.insert(tag.clone()),
                        false => image.tags.remove(&tag),
                    };
                }
                Ok(empty(201))
            }
            ("DELETE", [_, name]) => {
                objects.untag(name)?;
                Ok(document(&json!([])))
            }
            _ => Err((404, "the fake engine has no such call of images".into())),
        }
    }

    /// The containers with the label of the filter.
    fn list_containers(&self, objects: &FakeEngineObjects) -> Value {
        let filters: Value = serde_json::from_str(self.query("filters")).unwrap_or_default();
        let wanted = filters["label"][0]
            .as_str()
            .and_then(|one| one.split_once('='));
        let has_label = |one: &&FakeContainer| {
            wanted.is_none_or(|(key, value)| one.labels.get(key).is_some_and(|had| had == value))
        };
        let found = objects.containers.values().filter(has_label);
        let found = found.map(|one| json!({"Id": one.id, "Names": [format!("/{}", one.name)]}));
        found.collect()
    }

    fn perform_on_volume(&self, objects: &mut FakeEngineObjects) -> Answer {
        let (method, path) = self.parts();
        let described = |name: &str, labels: &Value| json!({"Name": name, "Labels": labels, "Driver": "local", "Mountpoint": "", "Scope": "local", "Options": {}});
        match (method, path.as_slice()) {
            ("POST", [_, "create"]) => {
                let name = self.body["Name"].as_str().unwrap_or_default();
                let labels = self.body["Labels"].clone();
                let reply = document(&described(name, &labels));
                objects.volumes.insert(name.into(), labels);
                Ok(reply)
            }
            ("GET", [_, name]) => {
                let labels = objects.volumes.get(*name);
                let labels = labels.ok_or_else(|| (404, format!("no such volume: {name}")))?;
                Ok(document(&described(name, labels)))
            }
            _ => Err((404, "the fake engine has no such call of volumes".into())),
        }
    }

    fn perform_on_network(&self, objects: &mut FakeEngineObjects) -> Answer {
        let (method, path) = self.parts();
        let container = self.body["Container"].as_str().unwrap_or_default();
        match (method, path.as_slice()) {
            ("POST", [_, "create"]) => {
                let network = FakeNetwork {
                    labels: serde_json::from_value(self.body["Labels"].clone()).unwrap_or_default(),
                    internal: self.body["Internal"] == true,
                };
                let name = self.body["Name"].as_str().unwrap_or_default();
                objects.networks.insert(name.into(), network);
                return Ok(document(&json!({"Id": name, "Warning": ""})));
            }
            ("GET", [_, name]) => {
                let found = objects.networks.get(*name);
                let found = found.ok_or_else(|| (404, format!("network {name} not found")))?;
                return Ok(document(&json!({"Name": name, "Labels": found.labels})));
            }
            ("DELETE", [_, name]) => drop(objects.networks.remove(*name)),
            ("POST", [_, network, "connect"]) => objects.connect(container, network)?,
            ("POST", [_, network, "disconnect"]) => objects.disconnect(container, network)?,
            _ => return Err((404, "the fake engine has no such call of networks".into())),
        }
        Ok(empty(200))
    }
}

/// The container as `inspect` shows it.
fn describe_container(objects: &FakeEngineObjects, found: &FakeContainer) -> Value {
    let status = match found.phase {
        ContainerPhase::Created => "created",
        ContainerPhase::Running => "running",
        ContainerPhase::Restarting => "restarting",
        ContainerPhase::Paused => "paused",
        ContainerPhase::Stopped => "exited",
        ContainerPhase::Dead => "dead",
    };
    let bound = |port: &u16| {
        let inside = format!("{port}/tcp");
        (
            inside,
            json!([{"HostIp": "127.0.0.1", "HostPort": port.to_string()}]),
        )
    };
    let wanted: BTreeMap<String, Value> = found.ports.iter().map(bound).collect();
    let networks = found.networks.iter().map(|name| (name, json!({})));
    let has_ports = objects.publishes(found);
    json!({
        "Id": found.id,
        "Image": found.image,
        "State": {"Status": status, "ExitCode": found.exit_code, "Error": found.error},
        "RestartCount": found.restart_count,
        "Config": {"Labels": found.labels, "Env": found.env},
        "HostConfig": {"PortBindings": wanted},
        "NetworkSettings": {
            "Networks": networks.collect::<BTreeMap<_, _>>(),
            "Ports": if has_ports { json!(wanted) } else { json!({}) },
        },
    })
}

/// The image as a list shows it.
fn describe_listed_image(objects: &FakeEngineObjects, id: &str) -> Value {
    let mut shown = objects.describe_image(id);
    for (key, value) in [("ParentId", json!("")), ("RepoDigests", json!([]))] {
        shown[key] = value;
    }
    for key in ["Created", "SharedSize", "Containers"] {
        shown[key] = json!(0);
    }
    shown
}

/// The verb of `osctl` in a command.
fn exec_verb(command: &[String]) -> &str {
    command.get(1).map_or("", String::as_str)
}

/// Output of a process in the frame of the engine.
fn stream_frame(stream: u8, text: &str) -> Vec<u8> {
    if text.is_empty() {
        return Vec::new();
    }
    let length = u32::try_from(text.len())
        .expect("a short text")
        .to_be_bytes();
    [&[stream, 0, 0, 0], &length[..], text.as_bytes()].concat()
}

pub(super) fn refuse(status: u16, message: &str) -> Reply {
    let mut reply = document(&json!({"message": message}));
    *reply.status_mut() = status.try_into().expect("a status");
    if status == 304 {
        *reply.body_mut() = Full::default();
    }
    reply
}

fn empty(status: u16) -> Reply {
    let mut reply = Reply::default();
    *reply.status_mut() = status.try_into().expect("a status");
    reply
}

fn document(value: &Value) -> Reply {
    let mut reply = Response::new(Full::new(value.to_string().into()));
    let kind = "application/json".parse().expect("a header");
    reply.headers_mut().insert("content-type", kind);
    reply
}

fn lines(values: &[Value]) -> Reply {
    let text: String = values.iter().map(|value| format!("{value}\n")).collect();
    Response::new(Full::new(text.into()))
}

fn read_query(uri: &Uri) -> BTreeMap<String, String> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let pairs = pairs.filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(key, value)| (key.to_owned(), percent_decode(&value.replace('+', " "))))
        .collect()
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after
            .get(..2)
            .and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        match (first, code) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
