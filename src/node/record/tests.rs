use super::*;
use crate::device::{Minor, Slice};

const BOOT: &str = "11111111-2222-3333-4444-555555555555";
const UUID: &str = "GPU-00000000-0004-4000-8000-000000000000";

/// A node with two cards, the first of which is cut in two slices.
struct Node {
    root: tempfile::TempDir,
    known: Inventory,
}

impl Node {
    fn new() -> Node {
        let root = tempfile::tempdir().unwrap();
        let node = Node { root, known: Inventory::new(cards()) };
        node.file("proc/sys/kernel/random/boot_id", &format!("{BOOT}\n"));
        node.file(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64  580.159.04  R\n",
        );
        for (path, minor) in [("gi1", 12), ("gi1/ci0", 13), ("gi2", 21), ("gi2/ci0", 22)] {
            let path = format!("proc/driver/nvidia/capabilities/gpu4/mig/{path}/access");
            node.file(&path, &format!("DeviceFileMinor: {minor}\n"));
        }
        node
    }

    fn path(&self) -> PathBuf {
        self.root.path().join("run/node.json")
    }

    fn file(&self, path: &str, content: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Reads the record as the tests' own user wrote it.
    fn read(&self) -> Result<Vec<Card>, Disbelief> {
        let now = Now::read(self.root.path(), &self.known).unwrap();
        read_owned_by(rustix::process::geteuid().as_raw(), &self.path(), &now)
    }

    fn write(&self, record: &serde_json::Value) {
        write(&self.path(), record.to_string().as_bytes()).unwrap();
    }

    /// Why a record is not believed after a change to it.
    fn disbelief(&self, change: impl FnOnce(&mut serde_json::Value)) -> String {
        let mut record = record();
        change(&mut record);
        self.write(&record);
        self.read().unwrap_err().to_string()
    }
}

fn cards() -> Vec<Card> {
    let slice = |n: u32, cap_minors| Slice {
        uuid: format!("MIG-00000000-00a0-5000-8000-00000000000{n}").parse().unwrap(),
        gi: n,
        ci: 0,
        profile: "3g.40gb".into(),
        cap_minors,
    };
    let card = |bus: &str, minor, uuid: Option<&str>, slices| Card {
        pci: format!("0000:{bus}:00.0").parse().unwrap(),
        minor: Minor(minor),
        uuid: uuid.map(|uuid| uuid.parse().unwrap()),
        model: "NVIDIA A100-SXM4-80GB".into(),
        numa: None,
        slices,
    };
    vec![
        card("01", 4, Some(UUID), vec![slice(1, [12, 13]), slice(2, [21, 22])]),
        card("41", 0, None, Vec::new()),
    ]
}

/// What belongs on that node, with a field that the plugin does not know.
fn record() -> serde_json::Value {
    let mut cards = serde_json::to_value(cards()).unwrap();
    cards[1]["uuid"] = "GPU-00000000-0004-4000-8000-000000000001".into();
    cards[1]["memory"] = 1.into();
    serde_json::json!({"schema": SCHEMA, "boot_id": BOOT, "driver": "580.159.04", "cards": cards})
}

#[test]
fn a_folder_that_somebody_holds_locked_holds_no_writer_up() {
    let folder = tempfile::tempdir().unwrap();
    let held = File::open(folder.path()).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let (done, finished) = std::sync::mpsc::channel();
    let path = folder.path().join("node.json");
    std::thread::spawn(move || done.send(write(&path, b"{}").is_ok()));
    assert_eq!(finished.recv_timeout(std::time::Duration::from_secs(5)), Ok(true));
}

#[test]
fn a_record_of_today_is_believed() {
    let node = Node::new();
    node.write(&record());
    let cards = node.read().unwrap();
    assert_eq!(cards[0].slices[1].profile, "3g.40gb");
    assert!(cards[1].uuid.is_some());
    assert_eq!(fs::metadata(node.path()).unwrap().mode() & 0o7777, 0o644);
}

#[test]
fn a_record_of_another_day_is_not() {
    let node = Node::new();
    assert_eq!(node.disbelief(|r| r["boot_id"] = "x".into()), "it was written before this boot");
    assert_eq!(
        node.disbelief(|r| r["driver"] = "570.1".into()),
        "it was written under driver 570.1, and 580.159.04 is loaded"
    );
    assert_eq!(
        node.disbelief(|r| r["schema"] = 2.into()),
        "its schema is 2 and this version reads 1"
    );
    assert_eq!(
        node.disbelief(|r| *r = serde_json::json!({"schema": 7, "nodes": []})),
        "its schema is 7 and this version reads 1"
    );
}

#[test]
fn a_record_of_other_cards_is_not() {
    let node = Node::new();
    let cards = |r: &mut serde_json::Value| r["cards"].as_array_mut().unwrap().clone();
    assert_eq!(
        node.disbelief(|r| r["cards"] = cards(r)[..1].into()),
        "it lacks card 0000:41:00.0, which the driver lists"
    );
    assert_eq!(
        node.disbelief(|r| {
            let mut more = cards(r);
            more.push(more[1].clone());
            more[2]["pci"] = "0000:81:00.0".into();
            r["cards"] = more.into();
        }),
        "it has card 0000:81:00.0, which the driver does not list"
    );
    assert!(
        node.disbelief(|r| {
            let mut more = cards(r);
            more.push(more[1].clone());
            r["cards"] = more.into();
        })
        .contains("0000:41:00.0")
    );
    for (key, value) in [("minor", 9.into()), ("uuid", UUID.replace("-0004-", "-0005-").into())] {
        let value: serde_json::Value = value;
        assert_eq!(
            node.disbelief(|r| r["cards"][0][key] = value),
            "it has another minor or UUID for card 0000:01:00.0 than the driver"
        );
    }
}

#[test]
fn a_record_that_gives_two_devices_one_name_is_not() {
    let node = Node::new();
    let slice = "MIG-00000000-00a0-5000-8000-000000000001";
    assert_eq!(
        node.disbelief(|r| r["cards"][1]["uuid"] = UUID.into()),
        format!("it names two devices {UUID}")
    );
    assert_eq!(
        node.disbelief(|r| r["cards"][0]["slices"][1]["uuid"] = slice.into()),
        format!("it names two devices {slice}")
    );
}

#[test]
fn cards_that_are_gone_are_remembered_for_this_boot_and_not_believed_to_be_there() {
    let node = Node::new();
    let with_gone = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut record = record();
        let mut gone = record["cards"][1].clone();
        (gone["pci"], gone["uuid"]) = ("0000:81:00.0".into(), serde_json::Value::Null);
        record["gone"] = vec![gone].into();
        change(&mut record);
        node.write(&record);
        let me = rustix::process::geteuid().as_raw();
        let seen = seen_by(me, &node.path(), node.root.path()).unwrap_or_default();
        seen.iter().map(|card| card.pci.to_string()).collect::<Vec<_>>()
    };
    let all = ["0000:01:00.0", "0000:41:00.0", "0000:81:00.0"];
    assert_eq!(with_gone(&|_| {}), all);
    assert_eq!(node.read().unwrap().len(), 2);
    assert_eq!(with_gone(&|r| r["driver"] = "570.1".into()), all);
    assert_eq!(with_gone(&|r| r["gone"] = serde_json::Value::Null), [""; 0]);
    assert_eq!(with_gone(&|r| drop(r.as_object_mut().unwrap().remove("gone"))), all[..2]);
    assert_eq!(with_gone(&|r| r["boot_id"] = "x".into()), [""; 0]);
    assert_eq!(with_gone(&|r| r["schema"] = 2.into()), [""; 0]);
}

#[test]
fn a_record_of_other_slices_is_not() {
    let node = Node::new();
    let other = "it has other slices for card 0000:01:00.0 than the driver";
    assert_eq!(node.disbelief(|r| r["cards"][0]["slices"][1]["gi"] = 3.into()), other);
    assert_eq!(node.disbelief(|r| r["cards"][0]["slices"] = serde_json::json!([])), other);
    node.write(&record());
    let made = "proc/driver/nvidia/capabilities/gpu4/mig/gi2/ci1/access";
    node.file(made, "DeviceFileMinor: 23\n");
    assert_eq!(node.read().unwrap_err().to_string(), other);
}

#[test]
fn a_record_that_others_could_write_is_not() {
    let node = Node::new();
    node.write(&record());
    for mode in [0o664, 0o646, 0o666] {
        fs::set_permissions(node.path(), Permissions::from_mode(mode)).unwrap();
        let why = node.read().unwrap_err().to_string();
        assert_eq!(why, format!("others than root may write it (mode {mode:o})"));
    }
    node.write(&record());
    let now = Now::read(node.root.path(), &node.known).unwrap();
    let me = rustix::process::geteuid().as_raw();
    let why = read_owned_by(me + 1, &node.path(), &now).unwrap_err();
    assert!(matches!(why, Disbelief::Owner(owner) if owner == me));
}

#[test]
fn what_is_no_whole_file_is_not() {
    let node = Node::new();
    assert!(matches!(node.read(), Err(Disbelief::Missing)));
    node.write(&record());
    let whole = fs::read(node.path()).unwrap();
    for length in [0, 1, whole.len() / 2, whole.len() - 1] {
        fs::write(node.path(), &whole[..length]).unwrap();
        assert!(matches!(node.read(), Err(Disbelief::Malformed(_))), "{length}");
    }
    let real = node.root.path().join("real.json");
    fs::rename(node.path(), &real).unwrap();
    fs::write(&real, &whole).unwrap();
    std::os::unix::fs::symlink(&real, node.path()).unwrap();
    assert!(matches!(node.read(), Err(Disbelief::Link)));
    fs::remove_file(node.path()).unwrap();
    fs::create_dir(node.path()).unwrap();
    assert!(matches!(node.read(), Err(Disbelief::NotAFile)));
    fs::remove_dir(node.path()).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, node.path(), fifo, 0o644.into(), 0).unwrap();
    assert!(matches!(node.read(), Err(Disbelief::NotAFile)));
}

#[test]
fn a_hundred_megabytes_of_zeros_are_not_read() {
    let node = Node::new();
    node.write(&record());
    File::create(node.path()).unwrap().set_len(100 << 20).unwrap();
    assert!(matches!(node.read(), Err(Disbelief::TooLarge)));
}

#[test]
fn a_writer_that_was_killed_is_cleaned_up_after() {
    let node = Node::new();
    node.file("run/.node.json.new", "half a rec");
    node.write(&record());
    assert!(node.read().is_ok());
    assert!(!node.root.path().join("run/.node.json.new").exists());
}

#[test]
fn a_write_that_fails_leaves_nothing_beside_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("7.json");
    fs::create_dir(&path).unwrap();
    assert!(write(&path, b"{}").is_err());
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, [".lock", "7.json"]);
}
