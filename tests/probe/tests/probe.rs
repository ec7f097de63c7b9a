//! The probe and the CUDA stand-in together, over a folder of device files.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

const PROBE: &str = env!("CARGO_BIN_EXE_cuda-probe");

/// A node of three cards, two of them sliced or whole, of which minor 1 has no device file.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let node = json!({"driver": "535.129.03", "cards": [
            {"pci": "0000:c1:00.0", "minor": 0, "model": "NVIDIA A100-SXM4-80GB",
             "uuid": "GPU-00000000-0008-4000-8000-000000000006"},
            {"pci": "0000:e1:00.0", "minor": 1, "model": "NVIDIA A100-SXM4-80GB",
             "uuid": "GPU-00000000-0008-4000-8000-000000000007"},
            {"pci": "0000:01:00.0", "minor": 4, "model": "NVIDIA A100-SXM4-80GB",
             "uuid": "GPU-00000000-0008-4000-8000-000000000000", "mig": true,
             "slices": [{"uuid": "MIG-00000000-00a0-5000-8000-000000000000",
                         "gi": 7, "ci": 0, "profile": "1g.10gb", "cap_minors": [66, 67]}]}]});
        fs::write(at("node.json"), node.to_string()).unwrap();
        fs::create_dir_all(at("dev/nvidia-caps")).unwrap();
        for file in ["nvidia0", "nvidia4", "nvidiactl", "nvidia-uvm"] {
            File::create(at("dev").join(file)).unwrap();
        }
        fs::create_dir(at("lib")).unwrap();
        symlink(stand_in(), at("lib/libcuda.so.1")).unwrap();
        Place { folder }
    }

    fn slice_may_be_opened(&self) {
        for cap in [66, 67] {
            let name = format!("dev/nvidia-caps/nvidia-cap{cap}");
            File::create(self.folder.path().join(name)).unwrap();
        }
    }

    fn run(&self, variables: &[(&str, &str)], words: &[&str]) -> Output {
        Command::new(PROBE)
            .args(words)
            .env_clear()
            .env("LD_LIBRARY_PATH", self.folder.path().join("lib"))
            .env("SIM_NODE", self.folder.path().join("node.json"))
            .env("SIM_DEV", self.folder.path().join("dev"))
            .envs(variables.iter().copied())
            .output()
            .unwrap()
    }

    fn found(&self, variables: &[(&str, &str)]) -> Value {
        let output = self.run(variables, &[]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout.iter().filter(|&&b| b == b'\n').count(), 1);
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// The shared library that cargo built beside this test.
fn stand_in() -> PathBuf {
    let library = PathBuf::from(PROBE).with_file_name("deps/libsim_cuda.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

#[test]
fn it_says_what_cuda_opens_and_what_can_be_opened() {
    let found = Place::new().found(&[
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("SLURM_LOCALID", "3"),
        ("SLURMD_NODENAME", "n1"),
        ("HOME", "/root"),
    ]);
    assert_eq!(
        found["cuda"],
        json!([{"index": 0, "uuid": "GPU-00000000-0008-4000-8000-000000000006",
                "pci": "0000:c1:00.0", "name": "NVIDIA A100-SXM4-80GB",
                "memory": 80u64 << 30}])
    );
    assert_eq!(found["cuda_error"], Value::Null);
    assert_eq!(found["open"], json!([0, 4]));
    assert_eq!(found["access"], json!([0, 4]));
    assert_eq!(found["host"], "n1");
    assert_eq!(
        found["env"],
        json!({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "SLURM_LOCALID": "3",
               "SLURMD_NODENAME": "n1"})
    );
}

#[test]
fn a_slice_goes_by_its_own_uuid() {
    let place = Place::new();
    place.slice_may_be_opened();
    let found = place.found(&[]);
    assert_eq!(found["cuda"][0]["uuid"], "MIG-00000000-00a0-5000-8000-000000000000");
    assert_eq!(found["cuda"][0]["pci"], "0000:01:00.0");
    assert_eq!(found["caps_open"], json!([66, 67]));
}

#[test]
fn an_error_of_cuda_is_a_finding() {
    let place = Place::new();
    let none = place.found(&[("CUDA_VISIBLE_DEVICES", "")]);
    assert_eq!(
        none["cuda_error"],
        json!({"call": "cuInit", "code": 100, "name": "CUDA_ERROR_NO_DEVICE"})
    );
    assert_eq!(none["cuda"], json!([]));
    let twice = place.found(&[("CUDA_VISIBLE_DEVICES", "0,0")]);
    assert_eq!(twice["cuda_error"]["code"], 101);
    fs::remove_file(place.folder.path().join("lib/libcuda.so.1")).unwrap();
    assert_eq!(place.found(&[])["cuda_error"]["call"], "dlopen");
}

#[test]
fn the_whole_environment_is_kept_byte_for_byte() {
    let place = Place::new();
    let file = place.folder.path().join("line");
    let words = ["--full-env", "--out", file.to_str().unwrap()];
    for _ in 0..2 {
        let output = place.run(&[("HOME", "/root"), ("ODD", "a=b\nc")], &words);
        assert!(output.status.success() && output.stdout.is_empty());
    }
    let lines = fs::read_to_string(&file).unwrap();
    assert_eq!(lines.lines().count(), 2);
    let found: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(found["env"]["ODD"], "a=b\nc");
    assert_eq!(found["env"].as_object().unwrap().len(), 5);
}

#[test]
fn an_unknown_word_is_refused() {
    let output = Place::new().run(&[], &["--slep", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}
