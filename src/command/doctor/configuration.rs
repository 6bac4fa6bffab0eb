//! The check of the configuration.

use super::{DoctorFinding, FindingVerdict};
use crate::command::CommandContext;
use crate::config::ResolvedConfig;
use crate::error::{Error, Result, nearest_name};
use crate::host::instance::Instance;

/// Characters of an instance's name per edit, up to which it is suggested for an unknown name.
const CHARS_PER_INSTANCE_EDIT: usize = 2;

/// The configuration, and the error of the project's file.
pub(super) fn read_config(cx: &CommandContext) -> Result<(ResolvedConfig, Option<Error>)> {
    let project = cx.instance.read_record()?.map(|r| r.project);
    cx.config_with_error(project.as_deref(), Vec::new())
}

/// The sections of `instances` in the user's file that belong to no instance.
pub(super) fn find_unused_sections(
    sections: &[String],
    cx: &CommandContext,
) -> Result<Vec<DoctorFinding>> {
    let instances = Instance::list_all(&cx.folders)?.into_iter();
    let mut names: Vec<String> = instances.map(|instance| instance.name).collect();
    names.push(cx.instance.name.clone());
    Ok(describe_unused_sections(sections, &names))
}

fn describe_unused_sections(sections: &[String], names: &[String]) -> Vec<DoctorFinding> {
    let unused = sections.iter().filter(|section| !names.contains(section));
    let finding = |section: &String| {
        let known = names.iter().map(String::as_str);
        let hint = match nearest_name(section, known, CHARS_PER_INSTANCE_EDIT) {
            Some(nearest) => format!("did you mean `instances.{nearest}`?"),
            None => format!(
                "`osctl --instance {section} up` creates the instance, `osctl config edit` opens the file"
            ),
        };
        DoctorFinding {
            what: "configuration",
            verdict: FindingVerdict::Warning,
            detail: format!("`instances.{section}` has no effect: no instance has this name"),
            hint: Some(hint),
        }
    };
    unused.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::describe_unused_sections;

    #[test]
    fn a_section_of_no_instance_is_named_with_the_nearest_instance() {
        let words = |names: &[&str]| -> Vec<String> { names.iter().map(|n| (*n).into()).collect() };
        let names = words(&["default", "blog"]);
        let found = describe_unused_sections(&words(&["blog", "blgo", "other"]), &names);
        let hints = found.iter().map(|finding| finding.hint.clone().unwrap());
        let hints: Vec<String> = hints.collect();
        assert_eq!(hints.len(), 2);
        assert_eq!(hints[0], "did you mean `instances.blog`?");
        assert!(hints[1].starts_with("`osctl --instance other up` creates"));
        assert!(
            found[0]
                .detail
                .starts_with("`instances.blgo` has no effect")
        );
    }
}
