//! The distribution that this machine runs, and where its packages come from.

use std::collections::BTreeMap;
use std::path::Path;

use crate::ImageError;
use crate::tools;

/// Distributions whose packages we know how to use.
const KNOWN: [Distro; 2] = [
    Distro {
        id: "debian",
        origin: "Debian",
        kernel: "linux-image-cloud-amd64",
        components: &["main"],
        keyring: "/usr/share/keyrings/debian-archive-keyring.gpg",
    },
    Distro {
        id: "ubuntu",
        origin: "Ubuntu",
        kernel: "linux-image-virtual",
        components: &["main", "universe"],
        keyring: "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
    },
];

#[derive(Clone, Copy, Debug)]
struct Distro {
    /// `ID` of os-release.
    id: &'static str,
    /// `Origin` of its package indexes.
    origin: &'static str,
    /// Package that depends on the current kernel for virtual machines.
    kernel: &'static str,
    components: &'static [&'static str],
    keyring: &'static str,
}

/// This machine's system.
#[derive(Clone, Debug)]
pub(crate) struct System {
    distro: Distro,
    codename: String,
    pub(crate) arch: String,
}

impl System {
    /// Looks at the machine.
    ///
    /// # Errors
    /// It is not one that we can build on.
    pub(crate) fn detect() -> Result<Self, ImageError> {
        let path = Path::new("/etc/os-release");
        let text = std::fs::read_to_string(path).map_err(ImageError::file("read", path))?;
        Self::from_os_release(&text, std::env::consts::ARCH)
    }

    fn from_os_release(text: &str, arch: &str) -> Result<Self, ImageError> {
        let values: BTreeMap<&str, &str> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key, value.trim_matches('"')))
            .collect();
        let value = |key| values.get(key).copied().unwrap_or_default();
        let known = KNOWN.iter().find(|distro| distro.id == value("ID"));
        match (known, value("VERSION_CODENAME"), arch) {
            (Some(distro), codename, "x86_64") if !codename.is_empty() => Ok(Self {
                distro: *distro,
                codename: codename.to_owned(),
                arch: "amd64".to_owned(),
            }),
            _ => Err(ImageError::UnsupportedSystem {
                found: format!("{} on {arch}", value("PRETTY_NAME")),
            }),
        }
    }

    /// What of the system a build depends on.
    pub(crate) fn inputs(&self) -> [&str; 3] {
        [self.distro.id, &self.codename, &self.arch]
    }

    /// Release of the distribution.
    pub(crate) fn codename(&self) -> &str {
        &self.codename
    }

    /// Package that depends on the current kernel.
    pub(crate) fn kernel_package(&self) -> &'static str {
        self.distro.kernel
    }

    /// The distribution's package sources as this machine has them, in the
    /// one-line form. Sources of third parties are left out.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn sources(&self) -> Result<Vec<String>, ImageError> {
        let format = "$(ORIGIN)|$(CODENAME)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)";
        let mut list = tools::command("apt-get");
        list.args(["indextargets", "--format", format, "Created-By: Packages"]);
        let text = tools::run("reading apt's sources", &mut list)?;
        let sources = self.choose_sources(&String::from_utf8_lossy(&text));
        if sources.is_empty() {
            let distribution = format!("{} {}", self.distro.origin, self.codename);
            return Err(ImageError::NoSources { distribution });
        }
        Ok(sources)
    }

    fn choose_sources(&self, targets: &str) -> Vec<String> {
        let mut components: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for line in targets.lines() {
            let fields: Vec<&str> = line.split('|').collect();
            let [origin, codename, uri, release, component] = fields[..] else {
                continue;
            };
            let ours = origin == self.distro.origin && codename.starts_with(&self.codename);
            if !ours || !self.distro.components.contains(&component) {
                continue;
            }
            let present = components.entry((uri, release)).or_default();
            if !present.contains(&component) {
                present.push(component);
            }
        }
        let signed = if Path::new(self.distro.keyring).exists() {
            format!("[signed-by={}] ", self.distro.keyring)
        } else {
            String::new()
        };
        components
            .into_iter()
            .map(|((uri, release), parts)| {
                format!("deb {signed}{uri} {release} {}", parts.join(" "))
            })
            .collect()
    }
}

/// Brings apt's idea of the available packages up to date.
///
/// # Errors
/// The mirror cannot be reached.
pub(crate) fn update_package_lists() -> Result<(), ImageError> {
    tools::run(
        "updating the package lists",
        tools::command("apt-get").args(["-q", "update"]),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOKWORM: &str = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n\
                            VERSION_CODENAME=bookworm\n";

    #[test]
    fn other_systems_are_refused_by_name() {
        let fedora = "PRETTY_NAME=\"Fedora Linux 40\"\nID=fedora\n";
        let error = System::from_os_release(fedora, "x86_64").unwrap_err();
        assert!(error.to_string().contains("Fedora Linux 40"), "{error}");
        let error = System::from_os_release(BOOKWORM, "aarch64").unwrap_err();
        assert!(error.to_string().contains("aarch64"), "{error}");
    }

    #[test]
    fn sources_of_third_parties_are_left_out() {
        let system = System::from_os_release(BOOKWORM, "x86_64").unwrap();
        let targets = "Debian|bookworm|http://mirror.test/debian/|bookworm|main\n\
                       Debian|bookworm|http://mirror.test/debian/|bookworm|main\n\
                       Debian|bookworm|http://mirror.test/debian/|bookworm|non-free\n\
                       Debian|bookworm-security|http://mirror.test/sec/|bookworm-security|main\n\
                       Vendor|bookworm|http://vendor.test/|bookworm|main\n";
        let sources = system.choose_sources(targets);
        assert_eq!(sources.len(), 2, "{sources:?}");
        assert!(
            sources[0].ends_with("http://mirror.test/debian/ bookworm main"),
            "{sources:?}"
        );
        assert!(
            sources[1].ends_with("bookworm-security main"),
            "{sources:?}"
        );
    }
}
