//! `osctl up`: from nothing to a healthy `os-host`.

use super::Context;
use crate::config::{Config, EngineChoice, Ports, Resolved, Source};
use crate::engine::{Container, Docker, Embedded, Engine, LogOptions, Phase, Progress};
use crate::error::{Error, Outcome, Result};
use crate::host::build::{self, Options};
use crate::host::client::Client;
use crate::host::instance::{LABEL, Record};
use crate::host::provision::{self, Cure};
use crate::host::specification::{DIGEST_LABEL, INHERITED_LABEL, specification};
use crate::host::{ports, project};
use crate::image::Body;
use crate::protocol::service::{Health, HealthStatus};
use crate::protocol::spec::Spec;
use crate::ui::Work;
use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a container may take from its start to its health.
const HEALTHY: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
const LOG_LINES: usize = 15;

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Say yes to what would be asked: install and start what is missing
    #[arg(short, long)]
    yes: bool,
    /// The folder that the container sees as /repo [default: the current one]
    #[arg(long, value_name = "PATH")]
    project: Option<PathBuf>,
    /// Where to run
    #[arg(long, value_name = "ENGINE", value_parser = ["docker", "embedded"])]
    engine: Option<String>,
    /// Take the next free port where one is taken
    #[arg(long)]
    auto_ports: bool,
    /// The Linux binary of osctl that runs inside
    #[arg(long, value_name = "PATH")]
    companion: Option<PathBuf>,
}

/// What is meant.
#[derive(Debug)]
struct Plan {
    yes: bool,
    project: Option<PathBuf>,
    flags: Vec<(&'static str, Value)>,
}

impl From<UpArgs> for Plan {
    fn from(args: UpArgs) -> Self {
        let UpArgs {
            yes,
            project,
            engine,
            auto_ports,
            companion,
        } = args;
        let mut flags = Vec::new();
        flags.extend(engine.map(|e| ("engine", json!(e))));
        flags.extend(auto_ports.then_some(("auto_ports", json!(true))));
        flags.extend(companion.map(|c| ("companion", json!(c))));
        Self {
            yes,
            project,
            flags,
        }
    }
}

pub(crate) async fn run(args: UpArgs, cx: &Context) -> Result<Outcome> {
    let plan = Plan::from(args);
    let _lock = cx.instance.lock()?;
    let recorded = cx.instance.record()?;
    let mut flags = plan.flags.clone();
    if let Some(record) = recorded
        .as_ref()
        .filter(|_| !flags.iter().any(|(key, _)| *key == "engine"))
    {
        // An instance stays on its engine; another one is a choice to be made aloud.
        flags.push(("engine", json!(record.engine)));
    }
    let choice = cx.config(None, flags.clone())?.config.engine;
    if recorded
        .as_ref()
        .is_some_and(|record| record.engine != choice)
    {
        let message = format!("instance `{}` runs on another engine", cx.instance.name);
        let hint = format!(
            "`{}` first, or another `--instance`",
            cx.instance.command("down --purge")
        );
        return Err(Error::precondition(message, hint).into());
    }
    let work = cx.ui.work("looking for the container engine");
    let engine = find_engine(choice, &plan, cx, &work).await?;
    let socket = socket(&engine);
    let project = project::find(
        plan.project.as_deref(),
        recorded.as_ref(),
        &cx.instance.name,
        &cx.folders,
        socket.as_deref(),
    )?;
    let resolved = cx.config(Some(&project), flags)?;
    let raise = Raise {
        cx,
        engine: &engine,
        resolved: &resolved,
        yes: plan.yes,
        work: &work,
    };
    let (record, done) = raise.run(recorded, project, socket.as_deref()).await?;
    drop(work);
    report(cx, &engine, &record, &resolved.config, done).await
}

async fn find_engine(
    choice: EngineChoice,
    plan: &Plan,
    cx: &Context,
    work: &Work,
) -> Result<Engine> {
    let missing = match cx.engine(choice).await {
        Err(error) if matches!(error.downcast_ref(), Some(Error::NoEngine { .. })) => error,
        found => return found,
    };
    let cure = Cure::find();
    if cure == Cure::None || !(plan.yes || cx.ui.can_ask()) {
        return Err(missing);
    }
    if !plan.yes && !work.pause(|| cx.ui.confirm(cure.question(), "--yes"))? {
        return Err(missing);
    }
    Ok(Engine::Docker(
        provision::engine(cure, &cx.folders, work).await?,
    ))
}

fn socket(engine: &Engine) -> Option<PathBuf> {
    match engine {
        Engine::Docker(docker) => docker.address().socket().map(Path::to_owned),
        Engine::Embedded(_) => None,
    }
}

/// What `up` did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Nothing,
    Started,
    Created,
    Replaced,
    Restarted,
}

/// Everything on the way from an engine to a healthy container.
struct Raise<'a> {
    cx: &'a Context,
    engine: &'a Engine,
    resolved: &'a Resolved,
    yes: bool,
    work: &'a Work,
}

impl Raise<'_> {
    async fn run(
        &self,
        recorded: Option<Record>,
        project: PathBuf,
        socket: Option<&Path>,
    ) -> Result<(Record, Done)> {
        let instance = &self.cx.instance;
        let config = &self.resolved.config;
        self.clean_leftovers().await?;
        let existing = self.own_container().await?;
        // A container of ours holds its own ports, and gives them up when it is replaced.
        let is_held =
            |c: &Container| matches!(c.phase, Phase::Running | Phase::Paused | Phase::Restarting);
        let held = recorded
            .as_ref()
            .filter(|_| existing.as_ref().is_some_and(is_held));
        let (wanted, auto) = (self.wanted_ports(recorded.as_ref()), config.auto_ports);
        let ports = ports::choose(
            wanted,
            held.map(|r| r.ports),
            config.bind,
            auto,
            self.engine,
        )
        .await?;
        let image = self.image(&project).await?;
        let record = Record {
            project,
            engine: config.engine,
            ports,
        };
        let token = instance.ensure_token()?;
        for folder in [instance.files(), instance.data()] {
            fs::create_dir_all(&folder)
                .with_context(|| format!("making `{}`", folder.display()))?;
        }
        let spec = specification(config, instance, &record, &token, &image, socket)?;
        instance.save(&record)?;
        let client = Client::new(instance, &record, config.bind)?;
        let done = self.place(&spec, existing, &client).await?;
        self.wait_until_healthy(&client, &spec.name).await?;
        Ok((record, done))
    }

    /// What an interrupted `up` left: containers of this instance that never ran, and the one
    /// that was to be replaced.
    async fn clean_leftovers(&self) -> Result<()> {
        let Engine::Docker(docker) = self.engine else {
            return Ok(());
        };
        let instance = &self.cx.instance;
        for name in docker
            .labelled(&format!("{LABEL}={}", instance.name))
            .await?
        {
            let found = self.engine.inspect(&name).await?;
            if found.is_some_and(|c| c.phase == Phase::Created) {
                self.work.log(&format!(
                    "removing `{name}`, which an interrupted `up` left"
                ));
                self.engine.remove(&name).await?;
            }
        }
        let (name, aside) = (instance.container(), aside(&instance.container()));
        let old = self.engine.inspect(&aside).await?;
        if old.is_none_or(|old| old.labels.get(LABEL) != Some(&instance.name)) {
            return Ok(());
        }
        match self.engine.inspect(&name).await? {
            Some(new) if new.phase == Phase::Running => self.engine.remove(&aside).await,
            _ => {
                self.engine.remove(&name).await?;
                docker.rename(&aside, &name).await
            }
        }
    }

    async fn own_container(&self) -> Result<Option<Container>> {
        let name = self.cx.instance.container();
        let found = self.engine.inspect(&name).await?;
        match &found {
            Some(container) if container.labels.get(LABEL) != Some(&self.cx.instance.name) => {
                Err(Error::Foreign {
                    what: "container",
                    name,
                }
                .into())
            }
            _ => Ok(found),
        }
    }

    /// The image's id, or what takes its place.
    async fn image(&self, project: &Path) -> Result<String> {
        let config = &self.resolved.config;
        match self.engine {
            Engine::Docker(docker) => self.docker_image(docker, config, project).await,
            Engine::Embedded(embedded) => self.embedded_body(embedded, config, project).await,
        }
    }

    async fn docker_image(
        &self,
        docker: &Docker,
        config: &Config,
        project: &Path,
    ) -> Result<String> {
        let recipe = build::recipe(docker, config, project)?;
        let options = Options {
            folders: &self.cx.folders,
            may_install: self.yes,
            force: false,
        };
        Ok(build::ensure(
            docker,
            config,
            &self.cx.instance,
            &recipe,
            options,
            self.work,
        )
        .await?
        .image
        .id)
    }

    async fn embedded_body(
        &self,
        embedded: &Embedded,
        config: &Config,
        project: &Path,
    ) -> Result<String> {
        let body = Body::of_project(&project.join(&config.body))?;
        if self.yes && !Embedded::has_python().await {
            self.work.step("installing Python");
            provision::install(&["python3", "python3-venv"], self.work).await?;
        }
        embedded.prepare(&body.files, self.work).await
    }

    /// Ports that were said aloud win over the recorded ones, which win over the usual ones.
    fn wanted_ports(&self, recorded: Option<&Record>) -> Ports {
        let said = |key: &str| {
            self.resolved
                .values
                .get(key)
                .is_some_and(|(_, source)| *source != Source::Default)
        };
        let config = self.resolved.config.ports;
        let Some(Record { ports, .. }) = recorded else {
            return config;
        };
        Ports {
            kernel: if said("ports.kernel") {
                config.kernel
            } else {
                ports.kernel
            },
            mcp: if said("ports.mcp") {
                config.mcp
            } else {
                ports.mcp
            },
            vnc: if said("ports.vnc") {
                config.vnc
            } else {
                ports.vnc
            },
        }
    }

    async fn place(
        &self,
        spec: &Spec,
        existing: Option<Container>,
        client: &Client,
    ) -> Result<Done> {
        let name = &spec.name;
        let Some(container) = existing else {
            self.work.step(&format!("creating `{name}`"));
            self.engine.create(spec).await?;
            return Ok(Done::Created);
        };
        let same = container.labels.get(DIGEST_LABEL) == spec.labels.get(DIGEST_LABEL);
        if same && container.phase == Phase::Running {
            if container.labels.get(INHERITED_LABEL) != spec.labels.get(INHERITED_LABEL) {
                let (down, up) = (
                    self.cx.instance.command("down"),
                    self.cx.instance.command("up"),
                );
                self.cx.ui.say(format!("this shell's API keys or proxies differ from the container's; `{down}` and `{up}` hand them in"));
            }
            return Ok(Done::Nothing);
        }
        if same && container.phase == Phase::Stopped {
            self.work.step(&format!("starting `{name}`"));
            self.engine.start(name).await?;
            return Ok(Done::Started);
        }
        self.work.step(&format!("replacing `{name}`"));
        match self.engine {
            Engine::Docker(docker) => self.replace(docker, spec, &container, client).await?,
            Engine::Embedded(_) => {
                self.engine.remove(name).await?;
                self.engine.create(spec).await?;
            }
        }
        Ok(Done::Replaced)
    }

    /// The old container goes only when the new one is healthy, and comes back otherwise.
    async fn replace(
        &self,
        docker: &Docker,
        spec: &Spec,
        old: &Container,
        client: &Client,
    ) -> Result<()> {
        let (name, aside) = (&spec.name, aside(&spec.name));
        self.engine.stop(name).await?;
        docker.rename(name, &aside).await?;
        let raised = async {
            self.engine.create(spec).await?;
            self.wait_until_healthy(client, name).await
        };
        if let Err(error) = raised.await {
            self.work.step(&format!("bringing the old `{name}` back"));
            self.engine.remove(name).await?;
            docker.rename(&aside, name).await?;
            self.engine.start(name).await?;
            return Err(error);
        }
        self.engine.remove(&aside).await?;
        if old.image != spec.image {
            build::remove_nameless(docker, &old.image).await?;
        }
        Ok(())
    }

    async fn wait_until_healthy(&self, client: &Client, name: &str) -> Result<()> {
        self.work
            .step(&format!("waiting for `{name}` to become healthy"));
        let deadline = Instant::now() + HEALTHY;
        let mut looked = Instant::now();
        loop {
            let why = match client.health().await {
                Ok(Health {
                    status: HealthStatus::Healthy,
                    ..
                }) => return Ok(()),
                Ok(health) => {
                    let waiting = health.services.iter().filter(|s| !s.ready);
                    let waiting: Vec<_> = waiting
                        .map(|s| format!("{} ({})", s.name, s.detail))
                        .collect();
                    self.work
                        .step(&format!("waiting for {}", waiting.join(", ")));
                    waiting.join(", ")
                }
                Err(error)
                    if matches!(
                        error.downcast_ref(),
                        Some(Error::OtherProtocol { .. } | Error::Refused { .. })
                    ) =>
                {
                    return Err(error);
                }
                Err(error) => error.to_string(),
            };
            if looked.elapsed() > POLL * 10 {
                looked = Instant::now();
                self.check_alive(name).await?;
            }
            if Instant::now() > deadline {
                return Err(self
                    .unhealthy(
                        name,
                        format!("it was not within {} s: {why}", HEALTHY.as_secs()),
                    )
                    .await);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn check_alive(&self, name: &str) -> Result<()> {
        match self.engine.inspect(name).await? {
            Some(Container {
                phase: Phase::Running | Phase::Created | Phase::Paused,
                ..
            }) => Ok(()),
            Some(container) => Err(self
                .unhealthy(name, container.exit.unwrap_or_default())
                .await),
            None => Err(self
                .unhealthy(name, "it was removed meanwhile".into())
                .await),
        }
    }

    /// Stops what would else restart for ever, and keeps what it said.
    async fn unhealthy(&self, name: &str, why: String) -> anyhow::Error {
        let mut log = Vec::new();
        let options = LogOptions {
            follow: false,
            tail: Some(LOG_LINES),
        };
        // The reason is worth more than why the log could not be read.
        let _ = self
            .engine
            .logs(name, options, &mut |line| log.push(line.to_owned()))
            .await;
        let _ = self.engine.stop(name).await;
        let logs = self.cx.instance.command("logs");
        Error::Unhealthy {
            container: name.into(),
            why,
            log,
            logs,
        }
        .into()
    }
}

/// Where a container waits while its successor proves itself.
fn aside(name: &str) -> String {
    format!("{name}-old")
}

async fn report(
    cx: &Context,
    engine: &Engine,
    record: &Record,
    config: &Config,
    done: Done,
) -> Result<Outcome> {
    let status = super::status::gather(cx, record, config, engine).await?;
    for warning in &status.warnings {
        cx.ui.warn(warning);
    }
    if cx.ui.json {
        cx.ui.document(&status)?;
        return Ok(Outcome::Done);
    }
    let name = cx.instance.container();
    cx.ui.line(match done {
        Done::Nothing => format!("{name} is up to date and healthy"),
        Done::Started => format!("{name} was started and is healthy"),
        Done::Created => format!("{name} is healthy"),
        Done::Replaced => {
            format!("{name} was replaced and is healthy; variables of the old kernel are gone")
        }
        Done::Restarted => {
            format!("{name} was restarted and is healthy; its variables are gone, its files stay")
        }
    });
    for (what, address) in &status.endpoints {
        cx.ui.line(format!("  {what:<8}{address}"));
    }
    cx.ui
        .line(format!("  {:<8}{}", "token", status.token_file.display()));
    cx.ui.say(format!(
        "next: {}",
        cx.instance.command("exec 'print(6*7)'")
    ));
    Ok(Outcome::Done)
}

/// Waits for a container that was started otherwise, and reports as `up` does.
pub(super) async fn wait(record: &Record, cx: &Context) -> Result<Outcome> {
    let resolved = cx.config(Some(&record.project), Vec::new())?;
    let engine = cx.engine(record.engine).await?;
    let work = cx.ui.work("waiting");
    let raise = Raise {
        cx,
        engine: &engine,
        resolved: &resolved,
        yes: false,
        work: &work,
    };
    let client = Client::new(&cx.instance, record, resolved.config.bind)?;
    raise
        .wait_until_healthy(&client, &cx.instance.container())
        .await?;
    drop(work);
    report(cx, &engine, record, &resolved.config, Done::Restarted).await
}
