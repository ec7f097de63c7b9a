use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use super::*;

const BOOT: &str = "11111111-2222-3333-4444-555555555555";
const UNKNOWN: &str = "GPU-????????-????-????-????-????????????";
const NAMED: &str = "GPU-00000000-0001-4000-8000-000000000000";

/// A node with one card.
struct Node(tempfile::TempDir);

impl Node {
    fn new(uuid: &str) -> Node {
        let node = Node(tempfile::tempdir().unwrap());
        node.file(
            "proc/driver/nvidia/gpus/0000:01:00.0/information",
            &format!("Model: X\nGPU UUID: {uuid}\nBus Location: 0000:01:00.0\nDevice Minor: 0\n"),
        );
        node.file("proc/driver/nvidia/version", "NVRM version: x  580.159.04  x\n");
        node.file("proc/sys/kernel/random/boot_id", BOOT);
        node
    }

    fn file(&self, path: &str, content: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// With a shell script for a helper, which leaves a trace when it is started.
    fn gather(&self, script: &str, ask: bool) -> Gathered {
        let helper = self.0.path().join("helper");
        let trace = self.0.path().join("asked");
        fs::write(&helper, format!("#!/bin/sh\n: > {}\n{script}\n", trace.display())).unwrap();
        fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
        let record = self.0.path().join("record.json");
        let timeout = Duration::from_secs(2);
        gather(self.0.path(), &Sources { record, helper, timeout }, ask)
    }

    fn was_asked(&self) -> bool {
        self.0.path().join("asked").exists()
    }

    fn answer(&self, uuid: &str, slices: &str) -> String {
        format!(
            r#"{{"schema":1,"boot_id":"{BOOT}","driver":"580.159.04","nvml":null,"cards":[{{
            "rank":0,"minor":0,"uuid":{uuid},"pci":"0000:01:00.0","model":"X","numa":null,
            "slices":[{slices}]}}]}}"#
        )
    }
}

#[test]
fn a_driver_that_names_all_is_not_asked_twice() {
    let node = Node::new(NAMED);
    let gathered = node.gather("exit 1", true);
    assert!(gathered.inventory.is_ok() && gathered.gap.is_none() && !node.was_asked());
}

#[test]
fn a_card_never_used_is_named_by_the_helper() {
    let node = Node::new(UNKNOWN);
    let answer = node.answer(&format!("\"{NAMED}\""), "");
    let gathered = node.gather(&format!("cat <<'X'\n{answer}\nX\nexit 1"), true);
    let uuid = gathered.inventory.unwrap().cards()[0].uuid.clone();
    assert_eq!(uuid.unwrap().as_str(), NAMED);
    assert!(node.was_asked() && gathered.gap.is_none());
}

#[test]
fn a_step_without_gpus_starts_nothing() {
    let node = Node::new(UNKNOWN);
    let gathered = node.gather("exit 1", false);
    assert!(gathered.inventory.is_ok() && gathered.gap.is_some() && !node.was_asked());
}

#[test]
fn what_the_helper_does_not_say_stays_unknown_with_the_reason() {
    let silent = r#"{"schema":1,"nvml":{"kind":"lost","why":"NVML is out"}}"#;
    for (script, why) in [
        ("exec sleep 1000", "did not answer within 2 s"),
        ("kill -ABRT $$", "was ended by signal 6"),
        ("exit 2", "answer is not either (it is not what gpu-align writes"),
        (&format!("echo '{silent}'"), "and NVML is out; let the Prolog run"),
    ] {
        let node = Node::new(UNKNOWN);
        let start = Instant::now();
        let gathered = node.gather(script, true);
        assert!(start.elapsed() < Duration::from_millis(2200), "{script}");
        assert_eq!(gathered.inventory.unwrap().cards()[0].uuid, None);
        let gap = gathered.gap.unwrap();
        assert!(gap.contains(why), "{script}: {gap}");
        assert!(gap.contains("record.json is not believed (there is none)"), "{gap}");
    }
}

#[test]
fn a_card_that_neither_names_is_a_gap() {
    let node = Node::new(UNKNOWN);
    let answer = node.answer("null", "");
    let gathered = node.gather(&format!("cat <<'X'\n{answer}\nX"), true);
    assert_eq!(gathered.inventory.unwrap().cards().len(), 1);
    assert!(gathered.gap.unwrap().contains("0000:01:00.0"));
}

#[test]
fn a_cut_card_is_never_taken_for_a_whole_one() {
    let node = Node::new(NAMED);
    let mig = "proc/driver/nvidia/capabilities/gpu0/mig/gi1";
    node.file(&format!("{mig}/access"), "DeviceFileMinor: 12\n");
    node.file(&format!("{mig}/ci0/access"), "DeviceFileMinor: 13\n");
    assert!(node.gather("exit 1", true).inventory.is_err());
    let slice = r#"{"uuid":"MIG-00000000-00a0-5000-8000-000000000000","gi":1,"ci":0,
        "profile":"1g.10gb","cap_minors":[12,13],"memory":null,"placement":null}"#;
    let answer = node.answer(&format!("\"{NAMED}\""), slice);
    let gathered = node.gather(&format!("cat <<'X'\n{answer}\nX"), true);
    assert_eq!(gathered.inventory.unwrap().cards()[0].slices.len(), 1);
}
