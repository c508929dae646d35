//! Container images that the root file system brings along, for guests that reach no registry.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::{Error, run::run};

/// Where archives are looked for: what `podman save` writes, or OCI archives.
const DIR: &str = "/srv/images";
/// Where is noted what was loaded: beside the store that it was loaded into, so that both go together.
const LOADED: &str = "/var/lib/containers/fuse-loaded";

/// Loads the archives that were not loaded yet.
pub(super) async fn load(podman: &Path) -> Result<(), Error> {
    for (archive, mark) in new(Path::new(DIR), Path::new(LOADED)) {
        let mut command = Command::new(podman);
        command.args(["load", "--quiet", "--input"]).arg(&archive);
        run("podman", command).await?;
        let noted = fs::create_dir_all(LOADED).and_then(|()| fs::write(&mark, ""));
        noted.map_err(Error::file("write", &mark))?;
    }
    Ok(())
}

/// Archives and the marks that they will get. Another file under the name of an old one is new.
fn new(dir: &Path, loaded: &Path) -> Vec<(PathBuf, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.path();
            let name = entry.file_name().into_string().ok()?;
            let meta = fs::metadata(&path).ok()?;
            let mark = loaded.join(format!("{name}-{}-{}", meta.len(), meta.mtime()));
            let wanted = name.ends_with(".tar") && meta.is_file() && !mark.exists();
            wanted.then_some((path, mark))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_loaded_once_until_they_are_others() {
        let dir = tempfile::tempdir().unwrap();
        let loaded = dir.path().join("loaded");
        fs::create_dir_all(&loaded).unwrap();
        for name in ["b.tar", "a.tar", "notes.txt"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let names = || {
            let found = new(dir.path(), &loaded);
            let names = found
                .iter()
                .map(|(path, _)| path.file_name().unwrap().to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(), ["a.tar", "b.tar"]);
        for (_, mark) in new(dir.path(), &loaded) {
            fs::write(mark, "").unwrap();
        }
        assert!(names().is_empty());
        fs::write(dir.path().join("a.tar"), "another one").unwrap();
        assert_eq!(names(), ["a.tar"]);
        assert!(new(&dir.path().join("none"), &loaded).is_empty());
    }
}
