//! The stand-in as gpu-align's helper meets it: loaded by nvml-wrapper.
//!
//! Each question is asked in a process of its own, since the library reads the
//! node file that the environment names, and one of its faults is to die. That
//! process is this test program again, running [`speak`] alone.

use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde_json::{Value, json};

/// What a process finds on this node, when only these device files exist.
fn asked_with(node: &Value, files: &[&str]) -> (ExitStatus, Option<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("node.json"), node.to_string()).unwrap();
    fs::create_dir_all(at("dev/nvidia-caps")).unwrap();
    for file in files {
        File::create(at("dev").join(file)).unwrap();
    }
    let status = Command::new(env::current_exe().unwrap())
        .args(["--exact", "speak"])
        .env("SIM_NODE", at("node.json"))
        .env("SIM_DEV", at("dev"))
        .env("SPEAK_INTO", at("found"))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    let found = fs::read(at("found")).ok();
    (status, found.map(|text| serde_json::from_slice(&text).unwrap()))
}

fn asked(node: &Value) -> Value {
    let everything = [
        "nvidia0",
        "nvidia1",
        "nvidia4",
        "nvidia-caps/nvidia-cap66",
        "nvidia-caps/nvidia-cap67",
        "nvidia-caps/nvidia-cap75",
        "nvidia-caps/nvidia-cap76",
    ];
    asked_with(node, &everything).1.expect("an answer")
}

/// A process's look at its node, for [`asked_with`]; nothing when cargo runs it.
#[test]
fn speak() {
    if let Some(path) = env::var_os("SPEAK_INTO") {
        let found = inventory().unwrap_or_else(|error| json!({"error": error.to_string()}));
        fs::write(path, found.to_string()).unwrap();
    }
}

fn inventory() -> Result<Value, NvmlError> {
    let nvml = Nvml::builder().lib_path(stand_in().as_os_str()).init()?;
    let count = nvml.device_count()?;
    let card = |index| match nvml.device_by_index(index).and_then(describe) {
        Ok(card) => card,
        Err(error) => json!({"error": error.to_string()}),
    };
    let found = json!({
        "driver": nvml.sys_driver_version()?,
        "nvml": nvml.sys_nvml_version()?,
        "cuda": nvml.sys_cuda_driver_version()?,
        "cards": (0..count).map(card).collect::<Vec<_>>(),
        "excluded": nvml.excluded_device_count()?,
    });
    nvml.shutdown()?;
    Ok(found)
}

fn describe(card: Device) -> Result<Value, NvmlError> {
    let nvml = card.nvml();
    let again = [
        nvml.device_by_uuid(card.uuid()?)?.index()?,
        nvml.device_by_pci_bus_id(card.pci_info()?.bus_id)?.index()?,
    ];
    assert_eq!(again, [card.index()?; 2]);
    let mut slices = Vec::new();
    for slot in 0..card.mig_device_count()? {
        match card.mig_device_by_index(slot) {
            Ok(slice) => {
                assert!(slice.mig_is_mig_device_handle()?);
                assert_eq!(slice.mig_parent_device()?.uuid()?, card.uuid()?);
                assert_eq!(nvml.device_by_uuid(slice.uuid()?)?.name()?, slice.name()?);
                slices.push(json!({
                    "slot": slot,
                    "uuid": slice.uuid()?,
                    "name": slice.name()?,
                    "memory": slice.memory_info()?.total,
                    "compute_slices": slice.attributes()?.compute_instance_slice_count,
                }));
            }
            Err(NvmlError::NotFound) => (),
            Err(error) => return Err(error),
        }
    }
    let memory = card.memory_info()?;
    Ok(json!({
        "uuid": card.uuid()?,
        "minor": card.minor_number()?,
        "pci": card.pci_info()?.bus_id,
        "name": card.name()?,
        "memory": [memory.total, memory.used, memory.free],
        "persistence": card.is_in_persistent_mode()?,
        "compute_mode": format!("{:?}", card.compute_mode()?),
        "mig": card.mig_mode()?.current,
        "utilization": card.utilization_rates()?.gpu,
        "numa": card.memory_affinity(1, 0).ok(),
        "pids": card.running_compute_processes()?.iter().map(|p| p.pid).collect::<Vec<_>>(),
        "slices": slices,
    }))
}

/// The shared library that cargo built beside this test.
fn stand_in() -> PathBuf {
    let library = env::current_exe().unwrap().with_file_name("libsim_nvml.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

fn node() -> Value {
    json!({"driver": "580.159.04", "cuda": 13000, "cards": [
        {"pci": "0000:c1:00.0", "minor": 0, "numa": 3, "model": "NVIDIA A100-SXM4-80GB",
         "uuid": "GPU-00000000-0008-4000-8000-000000000006", "memory": 1000,
         "memory_used": 300, "utilization": 42, "persistence": false, "compute_mode": 3,
         "processes": [{"pid": 11, "memory": 5}, {"pid": 12}, {"pid": 13, "graphics": true}]},
        {"pci": "0000:e1:00.0", "minor": 1, "numa": -1, "model": "NVIDIA A100-SXM4-80GB",
         "uuid": "GPU-00000000-0008-4000-8000-000000000007"},
        {"pci": "0000:01:00.0", "minor": 4, "model": "NVIDIA A100-SXM4-80GB",
         "uuid": "GPU-00000000-0008-4000-8000-000000000000",
         "slices": [
            {"uuid": "MIG-00000000-00a0-5000-8000-000000000000", "gi": 7, "ci": 0,
             "profile": "1g.10gb", "cap_minors": [66, 67]},
            {"uuid": "MIG-00000000-00a0-5000-8000-000000000001", "gi": 9, "ci": 0,
             "slot": 3, "profile": "2g.20gb", "cap_minors": [75, 76],
             "processes": [{"pid": 14}]}]}]})
}

#[test]
fn a_node_reads_as_its_file_says_in_pci_order() {
    let found = asked(&node());
    assert_eq!(found["driver"], "580.159.04");
    assert_eq!(found["nvml"], "13.580.159.04");
    assert_eq!(found["cuda"], 13000);
    let minors: Vec<_> = (0..3).map(|i| found["cards"][i]["minor"].clone()).collect();
    assert_eq!(minors, [4, 0, 1]);
    assert_eq!(
        found["cards"][1],
        json!({"uuid": "GPU-00000000-0008-4000-8000-000000000006", "minor": 0,
               "pci": "00000000:C1:00.0", "name": "NVIDIA A100-SXM4-80GB",
               "memory": [1000, 300, 700], "persistence": false,
               "compute_mode": "ExclusiveProcess", "mig": 0, "utilization": 42,
               "numa": [8], "pids": [11, 12], "slices": []})
    );
    assert_eq!(found["cards"][2]["numa"], Value::Null);
}

#[test]
fn slots_without_an_instance_are_gaps() {
    let card = &asked(&node())["cards"][0];
    assert_eq!(card["mig"], 1);
    assert_eq!(card["pids"], json!([14]));
    assert_eq!(
        card["slices"],
        json!([
            {"slot": 0, "uuid": "MIG-00000000-00a0-5000-8000-000000000000",
             "name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "memory": 10u64 << 30,
             "compute_slices": 1},
            {"slot": 3, "uuid": "MIG-00000000-00a0-5000-8000-000000000001",
             "name": "NVIDIA A100-SXM4-80GB MIG 2g.20gb", "memory": 20u64 << 30,
             "compute_slices": 2}])
    );
}

#[test]
fn before_r470_a_slice_goes_by_its_cards_name_and_its_place() {
    let mut old = node();
    old["driver"] = json!("460.106.00");
    let names = |node| {
        let found = asked(node);
        let slices = found["cards"][0]["slices"].as_array().unwrap().clone();
        slices.iter().map(|slice| slice["uuid"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let card = old["cards"].as_array().unwrap().iter().find(|card| card["slices"].is_array());
    let card = card.unwrap()["uuid"].as_str().unwrap().to_owned();
    let older = names(&old);
    assert!(older.iter().all(|name| name.starts_with(&format!("MIG-{card}/"))), "{older:?}");
    assert!(names(&node()).iter().all(|name| !name.contains('/')));
}

#[test]
fn a_process_hears_only_of_what_it_may_open() {
    let files = ["nvidia4", "nvidia-caps/nvidia-cap75", "nvidia-caps/nvidia-cap76"];
    let found = asked_with(&node(), &files).1.unwrap();
    assert_eq!(found["cards"].as_array().unwrap().len(), 1);
    assert_eq!(found["cards"][0]["slices"][0]["slot"], 3);
    assert_eq!(asked_with(&node(), &[]).1.unwrap()["cards"], json!([]));
}

#[test]
fn a_lost_card_is_counted_but_has_no_handle_a_gone_one_is_not_counted() {
    let mut lost = node();
    lost["cards"][0]["lost"] = json!(true);
    let cards = &asked(&lost)["cards"];
    assert_eq!(cards.as_array().unwrap().len(), 3);
    assert_eq!(cards[1]["error"], NvmlError::GpuLost.to_string());
    assert_eq!(cards[2]["minor"], 1);

    let mut gone = node();
    gone["cards"][0]["gone"] = json!(true);
    gone["cards"][1]["excluded"] = json!(true);
    let found = asked(&gone);
    assert_eq!(found["cards"].as_array().unwrap().len(), 1);
    assert_eq!(found["excluded"], 1);
}

#[test]
fn every_fault_of_init_is_the_error_of_its_name() {
    for (fault, expected) in [
        ("driver_not_loaded", NvmlError::DriverNotLoaded),
        ("lib_rm_version_mismatch", NvmlError::LibRmVersionMismatch),
        ("no_permission", NvmlError::NoPermission),
        ("gpu_is_lost", NvmlError::GpuLost),
        ("timeout", NvmlError::Timeout),
        ("unknown", NvmlError::Unknown),
    ] {
        let mut node = node();
        node["nvml"] = json!({"fault": fault});
        assert_eq!(asked(&node), json!({"error": expected.to_string()}));
    }
}

#[test]
fn init_can_take_its_time_die_or_talk_nonsense() {
    let mut slow = node();
    slow["nvml"] = json!({"sleep_s": 0.3, "fault": "unknown"});
    let begin = Instant::now();
    assert!(asked(&slow)["error"].is_string());
    assert!(begin.elapsed() >= Duration::from_millis(300));

    let mut crash = node();
    crash["nvml"] = json!({"fault": "crash"});
    let (status, found) = asked_with(&crash, &["nvidia0"]);
    assert!(!status.success() && found.is_none(), "{status}");

    let mut garbage = node();
    garbage["nvml"] = json!({"fault": "garbage"});
    let (status, found) = asked_with(&garbage, &["nvidia0"]);
    assert!(status.success());
    let error = found.unwrap()["error"].to_string();
    assert!(error.contains("utf-8"), "{error}");
}
