//! Debian packages. The lock has the versions of the requested packages; those that they need follow the release of
//! the base image.

use super::installer_process::run_installer;
use super::{PackageInstaller, PackageRequest, PackageResult, missing_package, read_lines};
use crate::protocol::packages::{
    LockedPackage, LockedPackages, PACKAGE_LIST, PackageKind, installer_files,
};
use std::process::Command;

/// The image's command that installs packages and leaves no lists and archives behind.
const INSTALL_COMMAND: &str = "/usr/local/sbin/install-debs";

impl PackageInstaller<'_> {
    pub(super) fn install_apt_list(&self) -> PackageResult<()> {
        let list = self.kind_folder(PackageKind::Apt).join(PACKAGE_LIST);
        self.install_debs(&read_lines(&list)?)
    }

    pub(super) fn install_apt_request(
        &self,
        request: PackageRequest<'_>,
    ) -> PackageResult<LockedPackages> {
        let PackageRequest {
            requested, added, ..
        } = request;
        if !added.is_empty() {
            self.install_debs(added)?;
        }
        let locked = LockedPackages {
            requested: requested.to_vec(),
            packages: requested
                .iter()
                .map(|package| self.installed_deb(package))
                .collect::<PackageResult<_>>()?,
            lockfile: None,
        };
        self.write_files(&installer_files(PackageKind::Apt, requested, Some(&locked)))?;
        Ok(locked)
    }

    /// Installs packages that exist. For a name that does not, apt would read `.` as a pattern and `-` as a removal.
    fn install_debs(&self, packages: &[String]) -> PackageResult<()> {
        self.run_apt(Command::new("apt-get").args(["update", "-q"]))?;
        for package in packages {
            let mut show = Command::new("apt-cache");
            show.args(["show", "--no-all-versions", package]);
            let found = run_installer(&mut show, "", &|_| {})?;
            if found.is_ok_and(|records| !records.trim().is_empty()) {
                continue;
            }
            return Err(missing_package(PackageKind::Apt, package));
        }
        self.run_apt(Command::new(INSTALL_COMMAND).args(packages))
    }

    fn run_apt(&self, command: &mut Command) -> PackageResult<()> {
        command.env("LC_ALL", "C.UTF-8");
        let ran = run_installer(command, "", self.report)?;
        ran.map(drop).map_err(|failure| failure.into_refusal())
    }

    fn installed_deb(&self, package: &str) -> PackageResult<LockedPackage> {
        let (name, _) = PackageKind::Apt.split(package);
        let mut query = Command::new("dpkg-query");
        query.args(["--show", "--showformat=${Version}", name]);
        let version = run_installer(&mut query, "", self.report)?;
        let version = version.map_err(|failure| failure.into_refusal())?;
        Ok(LockedPackage {
            name: name.into(),
            version,
            hashes: Vec::new(),
        })
    }
}
