//! The changes of a replacement other than the image, and the confirmation of them.

use super::UpRunner;
use crate::engine::{Container, Engine};
use crate::error::Result;
use crate::host::instance::{Instance, InstanceRecord};
use crate::host::passed_env::passed_variable_names;
use crate::protocol::spec::ContainerSpec;
use std::collections::{BTreeMap, BTreeSet};

impl UpRunner<'_> {
    /// The names of the variables that the current container has and the next one lacks, except variables of the image,
    /// of osctl and of proxies.
    pub(super) async fn lost_variables(
        &self,
        container: &Container,
        mut held: BTreeMap<String, String>,
        spec: &ContainerSpec,
    ) -> Result<BTreeSet<String>> {
        let of_image = match self.engine {
            Engine::Docker(docker) => docker.image_environment(&container.image).await?,
            Engine::Embedded(_) => BTreeMap::new(),
        };
        let passing = passed_variable_names(&spec.env, &self.resolved.config);
        held.retain(|name, value| {
            let is_of_image = of_image.get(name) == Some(value);
            !is_of_image
                && !passing.contains(name)
                && !name.starts_with("OSCTL_")
                && !spec.env.0.contains_key(name)
        });
        Ok(held.into_keys().collect())
    }

    /// Asks before a container is replaced by one that differs in more than its image. `lost` are variables of a
    /// container that an earlier version created without a record of them.
    pub(super) fn check_changes(
        &self,
        before: &InstanceRecord,
        after: &InstanceRecord,
        lost: &BTreeSet<String>,
        is_other_image: bool,
    ) -> Result<()> {
        let ports = (before.ports, after.ports);
        let (applied, env_names) = (&after.applied, self.env_args.names());
        let mut changes = before
            .applied
            .diff_settings(applied, ports, self.resolved, &env_names);
        changes.add_lost_variables(lost, &env_names);
        if before.project != after.project {
            changes.add_move(&before.project, &after.project);
        }
        if is_other_image {
            changes.add_image();
        }
        (self.replace_consent)(&changes)
    }
}

/// A note about variables whose values in this shell differ from those in the container.
pub(super) fn describe_changed_variables(
    instance: &Instance,
    changed: &[String],
) -> Option<String> {
    let (down, up) = (instance.osctl_command("down"), instance.osctl_command("up"));
    let names = changed.join(", ");
    (!changed.is_empty()).then(|| {
        format!("{names} changed in this shell; run `{down}` and `{up}` to apply the new values")
    })
}

#[cfg(test)]
mod tests {
    use super::describe_changed_variables;
    use crate::host::folders::Folders;
    use crate::host::instance::Instance;

    #[test]
    fn only_changed_variables_have_a_note() {
        let folders = Folders::beneath("/h".as_ref());
        let instance = Instance::new("default", &folders).unwrap();
        assert_eq!(describe_changed_variables(&instance, &[]), None);
        let note = describe_changed_variables(&instance, &["A".into(), "B".into()]);
        assert!(note.unwrap().starts_with("A, B changed in this shell; "));
    }
}
