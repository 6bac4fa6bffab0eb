//! Images: pulled, imported, built, tagged and removed.

use super::build_output::BuildOutput;
use super::{Docker, explain_api_error, is_status, root_cause, with_query_timeout};
use crate::engine::{EngineProgress, IMAGE_LABEL};
use crate::error::{Error, Result};
use crate::protocol::hex::hex;
use crate::protocol::spec::{BUILD_LABEL, BUILD_LABEL_PREFIX, ContainerLimits};
use bollard::models::ImageInspect;
use bollard::query_parameters::{
    BuildImageOptionsBuilder, BuilderVersion, CreateImageOptionsBuilder, ListImagesOptionsBuilder,
    RemoveImageOptions, RemoveImageOptionsBuilder, TagImageOptionsBuilder,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// How long an engine may take to answer a ping.
const ENGINE_PING_TIMEOUT: Duration = Duration::from_secs(5);

/// An existing image.
#[derive(Debug, Clone)]
pub(crate) struct EngineImage {
    pub(crate) id: String,
    pub(crate) labels: HashMap<String, String>,
    /// The names of the image.
    pub(crate) tags: Vec<String>,
    /// Bytes.
    pub(crate) size: u64,
}

/// The input of an image build.
#[derive(Debug, Clone)]
pub(crate) struct ImageBuild {
    pub(crate) tag: String,
    /// A tar archive with the `Dockerfile` at its root.
    pub(crate) context: Bytes,
    pub(crate) args: BTreeMap<String, String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) builder: ImageBuilder,
}

/// The builder, which [`Docker::has_buildkit`] determines before the build.
#[derive(Debug, Clone)]
pub(crate) enum ImageBuilder {
    BuildKit,
    Classic(ClassicBuild),
}

/// Settings for the classic builder only. With BuildKit, the engine's API has no limits for steps, and no images
/// remain between steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClassicBuild {
    /// The value of [`BUILD_LABEL`] in the Dockerfile; empty if the Dockerfile has none.
    pub(crate) build_label: String,
    /// CPUs; `None` is all.
    pub(crate) cpus: Option<f64>,
    /// Bytes; `None` is all.
    pub(crate) memory: Option<u64>,
    /// The network of the steps, if it exists.
    pub(crate) network: Option<String>,
}

impl ClassicBuild {
    pub(crate) fn new(
        build_label: String,
        limits: &ContainerLimits,
        network: Option<String>,
    ) -> Self {
        Self {
            build_label,
            cpus: limits.cpus,
            memory: limits.memory,
            network,
        }
    }
}

/// How often a build is started whose result the engine's output does not show.
const MAX_BUILD_ATTEMPTS: usize = 2;

/// The period of a CPU quota in microseconds: Docker's default.
const CPU_QUOTA_PERIOD_MICROS: i32 = 100_000;

impl Docker {
    /// The image of this name, if it exists.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn find_image(&self, name: &str) -> Result<Option<EngineImage>> {
        let found = self.inspect_image(name).await?;
        Ok(found.map(|found| EngineImage {
            id: found.id.unwrap_or_default(),
            labels: found.config.and_then(|c| c.labels).unwrap_or_default(),
            tags: found.repo_tags.unwrap_or_default(),
            size: found
                .size
                .unwrap_or_default()
                .try_into()
                .unwrap_or_default(),
        }))
    }

    /// Whether the engine has the image `NAME@sha256:…` from a registry, under exactly this digest, and can run it.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn has_image_by_digest(&self, reference: &str) -> Result<bool> {
        let Some(found) = self.inspect_image(reference).await? else {
            return Ok(false);
        };
        let digest = |reference: &str| {
            reference
                .split_once('@')
                .map(|(_, digest)| digest.to_owned())
        };
        // Compare the digests only: an engine may normalize the name.
        let mut held = found.repo_digests.iter().flatten().map(|held| digest(held));
        let is_held = held.any(|held| held.is_some() && held == digest(reference));
        Ok(is_held && found.architecture.as_deref() == Some(self.architecture()))
    }

    async fn inspect_image(&self, name: &str) -> Result<Option<ImageInspect>> {
        let action = "inspecting the image";
        match with_query_timeout(action, self.api.inspect_image(name)).await? {
            Ok(found) => Ok(Some(found)),
            Err(e) if is_status(&e, 404) => Ok(None),
            Err(e) => Err(explain_api_error(action, e)),
        }
    }

    /// Pulls an image from its registry.
    ///
    /// # Errors
    /// When the image can't be pulled; the error includes the engine's reason.
    pub(crate) async fn pull_image(
        &self,
        name: &str,
        progress: &dyn EngineProgress,
    ) -> std::result::Result<(), String> {
        let (image, tag) = split_image_name(name);
        let options = CreateImageOptionsBuilder::new()
            .from_image(image)
            .tag(tag)
            .build();
        let mut stream = self.api.create_image(Some(options), None, None);
        let mut layers: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        while let Some(info) = stream.next().await {
            let info = info.map_err(|e| root_cause(&e))?;
            let Some((id, detail)) = info.id.zip(info.progress_detail) else {
                continue;
            };
            if let Some((current, total)) = detail.current.zip(detail.total) {
                layers.insert(
                    id,
                    (
                        current.try_into().unwrap_or(0),
                        total.try_into().unwrap_or(0),
                    ),
                );
                let (done, all) = layers
                    .values()
                    .fold((0, 0), |(d, t), (c, a)| (d + c, t + a));
                progress.report_amount(&format!("pulling {name}"), done, Some(all));
            }
        }
        Ok(())
    }

    /// Creates an image of one layer from a tar archive of a root folder.
    ///
    /// # Errors
    /// When the engine refuses the archive or goes away.
    pub(crate) async fn import_image(
        &self,
        name: &str,
        archive: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<()> {
        let (image, tag) = split_image_name(name);
        let options = CreateImageOptionsBuilder::new()
            .from_src("-")
            .repo(image)
            .tag(tag)
            .build();
        let mut stream =
            self.api
                .create_image(Some(options), Some(bollard::body_stream(archive)), None);
        while let Some(info) = stream.next().await {
            info.map_err(|e| explain_api_error("importing the base image", e))?;
        }
        Ok(())
    }

    /// Removes an image. It is not an error if the image does not exist or a container needs it. Its untagged parents
    /// stay: they are the classic builder's cache.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn remove_image(&self, name: &str) -> Result<()> {
        let options = RemoveImageOptionsBuilder::new().noprune(true).build();
        match self.api.remove_image(name, Some(options), None).await {
            Ok(_) => Ok(()),
            Err(e) if is_status(&e, 404) || is_status(&e, 409) => Ok(()),
            Err(e) => Err(explain_api_error("removing the image", e)),
        }
    }

    /// Removes a tag of an image. If it is the last tag, also removes the digest names under which the image was
    /// pulled.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn remove_pulled_image(&self, tag: &str) -> Result<()> {
        let Some(found) = self.inspect_image(tag).await? else {
            return Ok(());
        };
        let (_, start) = split_image_name(tag);
        let mut digests = found.repo_digests.iter().flatten();
        if !digests.any(|held| held.contains(&format!("@sha256:{start}"))) || start.len() != 16 {
            // The tag was not created by osctl.
            return Ok(());
        }
        if found.repo_tags.is_some_and(|tags| tags == [tag]) {
            for digest in found.repo_digests.iter().flatten() {
                self.remove_image(digest).await?;
            }
        }
        self.remove_image(tag).await
    }

    /// Adds a name to an image.
    ///
    /// # Errors
    /// When the image does not exist.
    pub(crate) async fn tag_image(&self, image: &str, name: &str) -> Result<()> {
        let (repository, tag) = split_image_name(name);
        let options = TagImageOptionsBuilder::new()
            .repo(repository)
            .tag(tag)
            .build();
        let done = self.api.tag_image(image, Some(options)).await;
        done.map_err(|e| explain_api_error("tagging the image", e))
    }

    /// The names `REPOSITORY:TAG` of the images in this repository.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn list_tags(&self, repository: &str) -> Result<Vec<String>> {
        let filters = HashMap::from([("reference".to_owned(), vec![repository.to_owned()])]);
        let options = ListImagesOptionsBuilder::new().filters(&filters).build();
        let action = "listing images";
        let found = with_query_timeout(action, self.api.list_images(Some(options))).await?;
        let found = found.map_err(|e| explain_api_error(action, e))?;
        Ok(found.into_iter().flat_map(|i| i.repo_tags).collect())
    }

    /// Whether an image with this label exists.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn has_labelled_image(&self, label: &str, value: &str) -> Result<bool> {
        let filters = HashMap::from([("label".to_owned(), vec![format!("{label}={value}")])]);
        let options = ListImagesOptionsBuilder::new().filters(&filters).build();
        let action = "listing images";
        let found = with_query_timeout(action, self.api.list_images(Some(options))).await?;
        Ok(!found.map_err(|e| explain_api_error(action, e))?.is_empty())
    }

    /// The images that have no name and that no other image is based on.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn list_dangling_images(&self) -> Result<Vec<EngineImage>> {
        let filters = HashMap::from([("dangling".to_owned(), vec!["true".to_owned()])]);
        let options = ListImagesOptionsBuilder::new().filters(&filters).build();
        let action = "listing images";
        let found = with_query_timeout(action, self.api.list_images(Some(options))).await?;
        let found = found.map_err(|e| explain_api_error(action, e))?;
        let images = found.into_iter().map(|image| EngineImage {
            id: image.id,
            labels: image.labels,
            // Older engines use this name for an image without a tag.
            tags: image
                .repo_tags
                .into_iter()
                .filter(|tag| tag != "<none>:<none>")
                .collect(),
            size: image.size.try_into().unwrap_or_default(),
        });
        Ok(images.collect())
    }

    /// Builds an image. The output of the build is shown and decides nothing: it is untrusted, since the agent may
    /// write it.
    ///
    /// # Errors
    /// [`Error::BuildFailed`] with the end of the output, [`Error::DiskFull`], or a lost engine.
    pub(crate) async fn build_image(
        &self,
        build: &ImageBuild,
        progress: &dyn EngineProgress,
    ) -> Result<()> {
        // Some engines interleave two messages, so that the result is unknown. The finished steps are in the cache.
        for _ in 0..MAX_BUILD_ATTEMPTS {
            if self.try_build(build, progress).await? {
                return Ok(());
            }
        }
        Err(Error::EngineLost {
            doing: "building the image".into(),
            why: "the engine's output can't be read".into(),
        }
        .into())
    }

    /// Builds an image; `false` if the engine's output does not show the result.
    async fn try_build(&self, build: &ImageBuild, progress: &dyn EngineProgress) -> Result<bool> {
        let args: HashMap<_, _> = build.args.clone().into_iter().collect();
        let labels: HashMap<_, _> = build.labels.clone().into_iter().collect();
        let mut options = BuildImageOptionsBuilder::new()
            .t(&build.tag)
            .buildargs(&args)
            .labels(&labels)
            .rm(true)
            .forcerm(true);
        let mut api = self.api.clone();
        match &build.builder {
            ImageBuilder::BuildKit => {
                options = options
                    .version(BuilderVersion::BuilderBuildKit)
                    .session(&new_buildkit_session()?);
            }
            ImageBuilder::Classic(classic) => {
                options = options.version(BuilderVersion::BuilderV1);
                options = self.limit_classic_build(options, classic).await?;
                api = with_memory(api, classic.memory);
            }
        }
        // List the images of earlier builds before this one: the images of the last failed build are a cache for the
        // next.
        let unfinished = match &build.builder {
            ImageBuilder::Classic(classic) => {
                self.list_intermediate_images(&classic.build_label).await?
            }
            ImageBuilder::BuildKit => Vec::new(),
        };
        let done = self.run_build(&api, build, options, progress).await;
        for id in unfinished {
            self.remove_untagged_image(&id).await?;
        }
        done
    }

    async fn run_build(
        &self,
        api: &bollard::Docker,
        build: &ImageBuild,
        options: BuildImageOptionsBuilder,
        progress: &dyn EngineProgress,
    ) -> Result<bool> {
        let mut trace = BuildOutput::default();
        let stream = api.build_image(
            options.build(),
            None,
            Some(bollard::body_full(build.context.clone())),
        );
        let mut stream = std::pin::pin!(stream);
        while let Some(info) = stream.next().await {
            match info {
                Ok(info) => trace.record_info(info, progress),
                Err(error) if is_invalid_response(&error) => return Ok(false),
                Err(error) => {
                    return Err(self
                        .attribute_build_failure(trace.into_build_error(error, progress))
                        .await);
                }
            }
        }
        // A step that failed and was retried is not a failure: a failed build ends the stream with an error.
        Ok(true)
    }

    /// The unnamed images that classic builds with this mark have left between their steps. Finished images have the
    /// label of their instance. A base image may have more labels of osctl.
    async fn list_intermediate_images(&self, build_label: &str) -> Result<Vec<String>> {
        let instance = build_label.strip_prefix(BUILD_LABEL_PREFIX);
        let mut images = self.list_dangling_images().await?;
        images.retain(|image| {
            let label = |name: &str| image.labels.get(name).map(String::as_str);
            label(BUILD_LABEL) == Some(build_label)
                && !build_label.is_empty()
                && label(IMAGE_LABEL) != instance
        });
        Ok(images.into_iter().map(|image| image.id).collect())
    }

    /// Removes an image without a name, and the parents that no other image is based on. An image in use stays.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn remove_untagged_image(&self, id: &str) -> Result<()> {
        match self
            .api
            .remove_image(id, None::<RemoveImageOptions>, None)
            .await
        {
            Ok(_) => Ok(()),
            Err(e) if is_status(&e, 404) || is_status(&e, 409) => Ok(()),
            Err(e) => Err(explain_api_error("removing an image", e)),
        }
    }

    /// Limits the CPU and the network of the classic builder's steps.
    async fn limit_classic_build(
        &self,
        mut options: BuildImageOptionsBuilder,
        classic: &ClassicBuild,
    ) -> Result<BuildImageOptionsBuilder> {
        if let Some(cpus) = classic.cpus {
            let quota = (cpus * f64::from(CPU_QUOTA_PERIOD_MICROS)) as i32;
            options = options.cpuperiod(CPU_QUOTA_PERIOD_MICROS).cpuquota(quota);
        }
        if let Some(network) = &classic.network
            && self.has_network(network).await?
        {
            options = options.networkmode(network);
        }
        Ok(options)
    }

    /// Attributes a failed step to a lost engine if the engine no longer answers: an engine that shuts down fails the
    /// running step.
    async fn attribute_build_failure(&self, error: anyhow::Error) -> anyhow::Error {
        let Some(Error::BuildFailed { why, .. }) = error.downcast_ref() else {
            return error;
        };
        match tokio::time::timeout(ENGINE_PING_TIMEOUT, self.api.ping()).await {
            Ok(Ok(_)) => error,
            _ => Error::EngineLost {
                doing: "building the image".into(),
                why: why.clone(),
            }
            .into(),
        }
    }
}

/// Whether a response ended and is not a valid message of an engine. A lost connection gives another error.
fn is_invalid_response(error: &bollard::errors::Error) -> bool {
    use bollard::errors::Error::{IOError, JsonDataError, JsonSerdeError};
    match error {
        JsonDataError { .. } | JsonSerdeError { .. } => true,
        // The message of `tokio_util::codec::Decoder`, which has no error kind for an unfinished message.
        IOError { err } => err.to_string() == "bytes remaining on stream",
        _ => false,
    }
}

/// A random session id: BuildKit requires one per build.
fn new_buildkit_session() -> Result<String> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| anyhow::anyhow!("the system provides no random numbers: {e}"))?;
    Ok(hex(bytes))
}

/// A client that limits the memory of a build's steps, without swap. The build options hold at most 2 GiB, so the
/// limit is added to the request itself.
fn with_memory(api: bollard::Docker, limit: Option<u64>) -> bollard::Docker {
    let Some(bytes) = limit else {
        return api;
    };
    api.with_request_modifier(move |mut request| {
        let uri = request.uri();
        let separator = if uri.query().is_some() { '&' } else { '?' };
        let limited = format!("{uri}{separator}memory={bytes}&memswap={bytes}");
        *request.uri_mut() = limited.parse().expect("an address with two more numbers");
        request
    })
}

/// Splits a name into name and tag, or name and digest: `host:5000/x` has a port and no tag.
fn split_image_name(name: &str) -> (&str, &str) {
    if let Some((name, digest)) = name.split_once('@') {
        return (name, digest);
    }
    match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (name, "latest"),
    }
}

#[cfg(test)]
mod tests;
