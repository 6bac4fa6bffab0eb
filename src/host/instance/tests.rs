use super::{AppliedSettings, Instance, InstanceRecord};
use crate::config::{Config, EngineChoice};
use crate::error::Error;
use crate::host::folders::Folders;

#[test]
fn another_instance_has_its_own_names_and_folders() {
    let home = tempfile::tempdir().unwrap();
    let folders = Folders::beneath(home.path());
    let (first, second) = (
        Instance::new("default", &folders).unwrap(),
        Instance::new("two", &folders).unwrap(),
    );
    assert_eq!(
        (first.container_name(), second.container_name()),
        ("os-host".into(), "os-host-two".into())
    );
    assert_eq!(first.data_folder().parent(), second.data_folder().parent());
    assert_eq!(
        second.files_folder(),
        home.path().join("projects/docker_persistence-two")
    );
    assert!(Instance::new("../x", &folders).is_err());
    let old = Instance::new("old", &folders).unwrap();
    assert_ne!(first.replaced_container_name(), old.container_name());
    let no_instance = first.replaced_container_name().replace("os-host", "x");
    assert!(Instance::new(&no_instance, &folders).is_err());
}

#[test]
fn an_instance_has_no_name_that_belongs_to_osctl() {
    let home = tempfile::tempdir().unwrap();
    let folders = Folders::beneath(home.path());
    for name in ["keeper", "embedded", "tmp"] {
        let error = Instance::new(name, &folders).unwrap_err();
        assert!(error.to_string().contains("is reserved"), "{error}");
    }
    // `down --purge` of every instance removes the keepers' image.
    let image = Instance::new("keeper2", &folders).unwrap().image_name();
    assert_ne!(image, crate::host::build::KEEPER_IMAGE_NAME);
}

#[cfg(unix)]
#[test]
fn the_lock_and_the_state_folder_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let folders = Folders::beneath(home.path());
    let instance = Instance::new("default", &folders).unwrap();
    std::fs::create_dir_all(&instance.folder).unwrap();
    std::fs::write(instance.folder.join("lock"), "").unwrap();
    for path in [&folders.state, &instance.folder] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    drop(instance.lock().unwrap());
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folders.state), 0o700);
    assert_eq!(mode(&instance.folder), 0o700);
    assert_eq!(mode(&instance.folder.join("lock")), 0o600);
}

#[test]
fn a_kept_record_comes_back_once_and_never_for_another_container() {
    let home = tempfile::tempdir().unwrap();
    let instance = Instance::new("default", &Folders::beneath(home.path())).unwrap();
    let record = |project: &str| InstanceRecord {
        project: project.into(),
        engine: EngineChoice::Docker,
        ports: Config::default().ports,
        criu: false,
        remote: None,
        applied: AppliedSettings::default(),
    };
    instance.save_record(&record("/old")).unwrap();
    instance.back_up_record().unwrap();
    instance.save_record(&record("/new")).unwrap();
    instance.restore_record().unwrap();
    assert_eq!(instance.read_record().unwrap(), Some(record("/old")));
    instance.save_record(&record("/new")).unwrap();
    instance.restore_record().unwrap();
    assert_eq!(instance.read_record().unwrap(), Some(record("/new")));
    instance.back_up_record().unwrap();
    std::fs::remove_file(instance.folder.join("instance.json")).unwrap();
    instance.back_up_record().unwrap();
    instance.restore_record().unwrap();
    assert_eq!(instance.read_record().unwrap(), None);
}

#[test]
fn a_locked_instance_is_not_changed_by_a_second_one() {
    let home = tempfile::tempdir().unwrap();
    let instance = Instance::new("default", &Folders::beneath(home.path())).unwrap();
    let lock = instance.lock().unwrap();
    let error = instance.lock().unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(Error::Locked { .. })));
    drop(lock);
    instance.lock().unwrap();
}
