//! Whether another process may open what this one may: the kernel answers only
//! for who asks, so its answer holds for the other one where both are in one
//! device cgroup and one mount namespace.

use std::fs;
use std::path::{Path, PathBuf};

/// Why what process `pid` may open cannot be told by process `own`, as a
/// sentence; `None` where both see the same.
pub fn apart(root: &Path, own: u32, pid: u32) -> Option<String> {
    let differ = |what: Option<bool>, name: &str| match what {
        Some(true) => None,
        Some(false) => Some(format!("is in another {name}")),
        None => Some(format!("has a {name} that cannot be read")),
    };
    let same_group = both(root, own, pid, device_cgroup);
    let same_mounts = both(root, own, pid, mount_namespace);
    let how = differ(same_group, "cgroup").or_else(|| differ(same_mounts, "mount namespace"))?;
    Some(format!(
        "process {pid} {how}, so the kernel's answer to this one says nothing of what that one may \
         open; run 'gpu-align verify' where that process was started"
    ))
}

fn both<T: PartialEq>(
    root: &Path,
    own: u32,
    pid: u32,
    read: impl Fn(&Path) -> Option<T>,
) -> Option<bool> {
    let of = |pid: u32| read(&root.join(format!("proc/{pid}")));
    Some(of(own)? == of(pid)?)
}

/// The cgroup that says which devices a process may open: of the `devices`
/// controller under cgroup v1, else the one of v2.
fn device_cgroup(process: &Path) -> Option<String> {
    let text = fs::read_to_string(process.join("cgroup")).ok()?;
    // Each line: ID:CONTROLLERS:PATH
    let of = |wanted: &str| {
        text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|name| name == wanted).then(|| path.to_owned())
        })
    };
    of("devices").or_else(|| of(""))
}

fn mount_namespace(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/mnt")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of process 2 by process 1, given the cgroup file and mount
    /// namespace of both.
    fn said(own: (&str, &str), other: (&str, &str)) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        for (pid, (cgroup, mounts)) in [(1, own), (2, other)] {
            let process = root.path().join(format!("proc/{pid}"));
            fs::create_dir_all(process.join("ns")).unwrap();
            fs::write(process.join("cgroup"), cgroup).unwrap();
            if !mounts.is_empty() {
                std::os::unix::fs::symlink(mounts, process.join("ns/mnt")).unwrap();
            }
        }
        apart(root.path(), 1, 2)
    }

    const V1: &str = "5:devices:/slurm/job_1/step_0/task_0\n4:memory:/slurm/job_1\n0::/\n";
    const V2: &str = "0::/system.slice/slurmstepd.scope/job_1/step_0/user/task_0\n";

    #[test]
    fn processes_of_one_task_see_the_same() {
        for cgroup in [V1, V2] {
            assert_eq!(said((cgroup, "mnt:[1]"), (cgroup, "mnt:[1]")), None);
        }
        // Memory is no device.
        let elsewhere = V1.replace("memory:/slurm/job_1", "memory:/slurm/job_2");
        assert_eq!(said((V1, "mnt:[1]"), (&elsewhere, "mnt:[1]")), None);
    }

    #[test]
    fn another_task_or_a_container_is_told() {
        for cgroup in [V1, V2] {
            let other = cgroup.replace("task_0", "task_1");
            let why = said((cgroup, "mnt:[1]"), (&other, "mnt:[1]")).unwrap();
            assert!(why.starts_with("process 2 is in another cgroup, "), "{why}");
        }
        let why = said((V2, "mnt:[1]"), (V2, "mnt:[2]")).unwrap();
        assert!(why.starts_with("process 2 is in another mount namespace, "), "{why}");
        let why = said((V2, "mnt:[1]"), (V2, "")).unwrap();
        assert!(why.starts_with("process 2 has a mount namespace that cannot be read, "), "{why}");
        assert!(said((V2, "mnt:[1]"), ("", "mnt:[1]")).unwrap().contains("a cgroup that cannot"));
    }
}
