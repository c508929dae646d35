"""host-agent/qemu: the scripts of GPU hosts, on a tree that stands for the kernel and an nvidia-smi that keeps its state."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import unittest

from support import (
    ARCH, BINARIES, HOST, IMAGE, QEMU, Stage, archive, need_image, need_programs, need_root, need_tools, program,
)

HOME = "/var/lib/fuse-gpu"

# Keeps MIG mode and partitions in files: a line `<profile> <number> <compute instance or ->` for each partition; each card
# has room for $ROOM of them. Those whose number is in `used` are a guest's.
NVIDIA_SMI = r"""#!/bin/bash
state=$NVIDIA_STATE
mode() { cat "$state/mode-$1" 2>/dev/null || printf Disabled; }
row() { # index uuid name bus
  case $query in
    index,*) printf '%s, %s, %s, %s, %s\n' "$1" "$2" "$3" "$4" "$(mode "$1")" ;;
    *) printf '%s, %s, %s, 40960, 550.54, 8.0, %s\n' "$4" "$2" "$3" "$(mode "$1")" ;;
  esac
}
[ ! -e "$state/broken" ] || { echo 'NVIDIA-SMI has failed' >&2; exit 9; }
case "$1" in
  --query-gpu=*)
    query=${1#--query-gpu=}
    while read -r index uuid bus name; do
      # A card that vfio-pci has is not seen.
      case $(readlink "$FUSE_SYSFS/bus/pci/devices/$(printf '%s' "${bus:4}" | tr A-F a-f)/driver") in */vfio-pci) ;; *)
        row "$index" "$uuid" "$name" "$bus" ;; esac
    done <"$state/cards" ;;
  -L)
    while read -r index uuid bus name; do
      printf 'GPU %s: %s (UUID: %s)\n' "$index" "$name" "$uuid"
      n=0
      while read -r profile number compute; do
        [ "$compute" = 0 ] || continue
        printf '  MIG %s     Device  %s: (UUID: MIG-%s-%s)\n' "$profile" "$n" "$index" "$n"; n=$((n + 1))
      done < <(cat "$state/parts-$index" 2>/dev/null)
    done <"$state/cards" ;;
  -i) [ ! -e "$state/busy" ] || exit 1; [ -e "$state/pending" ] || printf Enabled >"$state/mode-$2" ;;
  mig)
    parts=$state/parts-$3
    touch "$parts"
    case $4 in
      -cgi)
        [ "$(wc -l <"$parts")" -lt "${ROOM:-7}" ] || { echo 'Insufficient Resources' >&2; exit 19; }
        for number in 7 8 9 10 11 12 13; do grep -q " $number " "$parts" || break; done
        printf '%s %s 0\n' "$5" "$number" >>"$parts" ;;
      -lgi)
        [ -s "$parts" ] || { echo 'No GPU instances found: Not Found'; exit 6; }
        printf '| GPU instances:                                        |\n| GPU   Name             Profile  Instance   Placement  |\n'
        while read -r profile number compute; do
          printf '|=======================================================|\n|%4s  MIG %-15s  19   %8s          0:1     |\n' "$3" "$profile" "$number"
        done <"$parts" ;;
      -dci)
        { grep -q " $6 0$" "$parts" && ! grep -qx "$6" "$state/used" 2>/dev/null; } || { echo 'In use by another client' >&2; exit 19; }
        sed -i "s/ $6 0$/ $6 -/" "$parts" ;;
      -dgi)
        grep -q " $6 -$" "$parts" || { echo 'In use by another client' >&2; exit 19; }
        sed -i "/ $6 -$/d" "$parts" ;;
      *) exit 2 ;;
    esac ;;
esac
"""

LSPCI = r"""#!/bin/sh
case $2 in *:00.0) echo "${2#0000:} 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 40GB] (rev a1)" ;; esac
"""


class Kernel:
    """Devices as files; what is written to the fifos happens, as the kernel would have it."""

    def __init__(self, root, mdev_room=7):
        self.root, self.devices, self.told = root, root / "bus/pci/devices", []
        self.mdevs, self.mdev_room, self.stuck = root / "bus/mdev/devices", mdev_room, set()
        self.mdevs.mkdir(parents=True)
        (root / "kernel/iommu_groups").mkdir(parents=True)
        self.devices.mkdir(parents=True)
        self.listen(root / "bus/pci/drivers_probe", self.probe)

    def listen(self, path, act):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)

        def serve():
            # The tree, and the fifo with it, goes at the end of a test.
            with contextlib.suppress(FileNotFoundError):
                while True:
                    for line in path.read_text().splitlines():
                        self.told.append((path.name, line))
                        act(line)

        threading.Thread(target=serve, daemon=True).start()

    def add(self, slot, group, vendor="0x10de", kind="0x030200", driver="nvidia"):
        device, members = self.devices / slot, self.root / "kernel/iommu_groups" / group / "devices"
        device.mkdir()
        members.mkdir(parents=True, exist_ok=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
        (device / "driver_override").write_text("(null)\n")
        (device / "iommu_group").symlink_to(members.parent)
        (members / slot).symlink_to(device)
        self.home = {**getattr(self, "home", {}), slot: driver}
        if driver:
            self.give(slot, driver)

    def give(self, slot, driver):
        home = self.root / "bus/pci/drivers" / driver
        if not home.exists():
            self.listen(home / "unbind", lambda slot: (self.devices / slot / "driver").unlink())
        link = self.devices / slot / "driver"
        link.unlink(missing_ok=True)
        link.symlink_to(home)

    def probe(self, slot):
        wanted = (self.devices / slot / "driver_override").read_text().strip().strip("(null)")
        if slot not in self.stuck:
            self.give(slot, wanted or self.home[slot])

    def driver(self, slot):
        link = self.devices / slot / "driver"
        return link.readlink().name if link.is_symlink() else None

    def add_types(self, slot, *names):
        for number, name in enumerate(names):
            kind = self.devices / slot / "mdev_supported_types" / f"nvidia-{number}"
            kind.mkdir(parents=True)
            (kind / "name").write_text(f"GRID {name}\n")
            (kind / "available_instances").write_text(f"{self.mdev_room}\n")
            self.listen(kind / "create", self.make_mdev)

    def make_mdev(self, uuid):
        (self.mdevs / uuid).mkdir()
        self.listen(self.mdevs / uuid / "remove", lambda _: shutil.rmtree(self.mdevs / uuid))


class GpuHost(Stage):
    def setUp(self):
        super().setUp()
        self.state = self.root / "nvidia"
        self.state.mkdir()
        self.kernel = Kernel(self.root / "sys")
        self.script(self.bin / "lspci", LSPCI)
        self.script(self.bin / "nvidia-smi", NVIDIA_SMI)
        self.env |= {"FUSE_SYSFS": str(self.kernel.root), "NVIDIA_STATE": str(self.state)}
        self.home = self.dest / HOME.lstrip("/")

    def cards(self, *cards):
        """(bus, group, name): a card with a sound device, behind a bridge that is in its group."""
        lines = []
        for number, (bus, group, name) in enumerate(cards):
            self.kernel.add(f"0000:{bus}:00.0", group)
            self.kernel.add(f"0000:{bus}:00.1", group, kind="0x040300", driver="snd_hda_intel")
            self.kernel.add(f"0000:{bus[0]}0:01.0", group, vendor="0x8086", kind="0x060400", driver="pcieport")
            lines.append(f"{number} GPU-{bus} 00000000:{bus.upper()}:00.0 {name}\n")
        (self.state / "cards").write_text("".join(lines))

    def qemu(self, name, *args, **kwargs):
        return self.run_script(QEMU / name, *args, **kwargs)

    def vfio(self):
        return (self.home / "vfio-inventory.txt").read_text().splitlines()

    def mig(self):
        file = self.home / "mig-inventory.txt"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


class Vfio(GpuHost):
    FACTS = "uuid=GPU-65;model=NVIDIA A100-SXM4-40GB;memory_mb=40960;driver_version=550.54;compute_cap=8.0;mig_mode=Disabled"

    def setUp(self):
        super().setUp()
        self.cards(("65", "11", "NVIDIA A100-SXM4-40GB"), ("b6", "12", "NVIDIA A100-SXM4-40GB"))

    def test_whole_groups_are_taken_and_written_down_with_what_the_driver_knew(self):
        self.qemu("qemu-vfio-bind.sh")
        for slot in ("0000:65:00.0", "0000:65:00.1", "0000:b6:00.0", "0000:b6:00.1"):
            self.assertEqual(self.kernel.driver(slot), "vfio-pci", slot)
        self.assertEqual(self.kernel.driver("0000:60:01.0"), "pcieport", "bridges stay")
        first, second = self.vfio()
        self.assertEqual(first, f"1 a100-sxm4-40gb 0000:65:00.0 0000:65:00.1 | bus_id=0000:65:00.0;{self.FACTS}")
        self.assertTrue(second.startswith("1 a100-sxm4-40gb 0000:b6:00.0 0000:b6:00.1 | bus_id=0000:b6:00.0;uuid=GPU-b6;"))

    def test_again_changes_nothing_and_keeps_what_nobody_can_tell_any_more(self):
        self.qemu("qemu-vfio-bind.sh", "bind")
        before, told = self.vfio(), len(self.kernel.told)
        self.qemu("qemu-vfio-bind.sh")
        self.assertEqual((self.vfio(), len(self.kernel.told)), (before, told))

    def test_without_the_drivers_tool_only_the_facts_are_missing(self):
        (self.bin / "nvidia-smi").unlink()
        self.qemu("qemu-vfio-bind.sh")
        self.assertEqual(self.vfio()[0], "1 a100-sxm4-40gb 0000:65:00.0 0000:65:00.1")

    def test_listing_touches_nothing(self):
        listed = self.qemu("qemu-vfio-bind.sh", "--list").stdout.splitlines()
        self.assertEqual(len(listed), 2)
        self.assertEqual(self.kernel.told, [])
        self.assertFalse((self.home / "vfio-inventory.txt").exists())

    def test_a_device_that_does_not_go_ends_it_before_anything_is_written_down(self):
        self.kernel.stuck.add("0000:65:00.1")
        done = self.qemu("qemu-vfio-bind.sh", fails=True)
        self.assertIn("0000:65:00.1 did not go to vfio-pci (it has snd_hda_intel)", done.stderr)
        self.assertFalse((self.home / "vfio-inventory.txt").exists())

    def test_a_card_in_parts_stays_with_its_driver(self):
        (self.state / "mode-0").write_text("Enabled")
        self.qemu("qemu-vfio-bind.sh")
        self.assertEqual(self.kernel.driver("0000:65:00.0"), "nvidia")
        self.assertEqual([line.split()[2] for line in self.vfio()], ["0000:b6:00.0"])

    def test_giving_back(self):
        self.qemu("qemu-vfio-bind.sh")
        self.qemu("qemu-vfio-bind.sh", "--unbind", "65:00.0")
        self.assertEqual(self.kernel.told[-1], ("drivers_probe", "0000:65:00.0"), "its own driver is asked")
        self.assertEqual([line.split()[2] for line in self.vfio()], ["0000:b6:00.0"], "the group is not whole any more")
        done = self.qemu("qemu-vfio-bind.sh", "--unbind", "0000:65:00.0")
        self.assertIn("is not bound to vfio-pci", done.stderr)
        for wrong in ("../65", "0000:99:00.0"):
            self.qemu("qemu-vfio-bind.sh", "--unbind", wrong, fails=True)
        self.qemu("qemu-vfio-bind.sh", "--frob", fails=True)

    def test_several_gpus_in_a_group_are_one_line(self):
        self.kernel.add("0000:65:00.2", "11")
        self.qemu("qemu-vfio-bind.sh")
        self.assertTrue(self.vfio()[0].startswith("2 a100-sxm4-40gb 0000:65:00.0 0000:65:00.1 0000:65:00.2 | "))


class NoGpus(GpuHost):
    def test_a_host_without_an_iommu_is_told_how_to_get_one(self):
        self.assertIn("intel_iommu=on", self.qemu("qemu-vfio-bind.sh", fails=True).stderr)

    def test_a_host_without_gpus_is_no_failure(self):
        self.kernel.add("0000:00:02.0", "1", vendor="0x8086", driver="i915")
        (self.state / "cards").write_text("")
        for args in (("--list",), ()):
            self.assertIn("there are no NVIDIA GPUs", self.qemu("qemu-vfio-bind.sh", *args).stderr)


class Mig(GpuHost):
    def setUp(self):
        super().setUp()
        self.cards(("65", "11", "NVIDIA A100-SXM4-40GB"), ("b6", "12", "NVIDIA A100-SXM4-40GB"))
        for bus in ("65", "b6"):
            self.kernel.add_types(f"0000:{bus}:00.0", "A100-1-10C", "A100-1-10CME", "A100-2-20C", "A100-40C")

    def setup_mig(self, *args, **kwargs):
        return self.qemu("qemu-mig-setup.sh", *args, **kwargs)

    def parts(self, card=0):
        """Profile and number of each partition of a card."""
        file = self.state / f"parts-{card}"
        return [tuple(line.split()[:2]) for line in file.read_text().splitlines()] if file.exists() else []

    def layout(self):
        return (self.home / "mig-layout.conf").read_text()

    def test_four_wanted_are_four_made_with_their_parent_and_an_attachable_id(self):
        self.setup_mig("--profile", "1G.10GB=4")
        found = self.mig()
        self.assertEqual(len(found), 4, "one call makes as many as are wanted")
        for profile, kind, uuid, parent in found:
            self.assertEqual((profile, kind, parent), ("1g.10gb", "a100-sxm4-40gb", "GPU-65"))
            self.assertRegex(uuid, r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
            self.assertTrue((self.kernel.mdevs / uuid).exists())
        self.assertEqual([profile for profile, _ in self.parts()], ["1g.10gb"] * 4)
        self.assertEqual(self.layout(), "1g.10gb=4\n")

    def test_a_full_card_is_followed_by_the_next_and_a_shortfall_is_said(self):
        done = self.setup_mig("--profile", "1g.10gb=5", ROOM="2")
        self.assertEqual([line[3] for line in self.mig()], ["GPU-65", "GPU-65", "GPU-b6", "GPU-b6"])
        self.assertIn("5 of 1g.10gb are wanted and 4 are there", done.stderr)

    def test_what_is_there_counts_and_again_changes_nothing(self):
        self.setup_mig("--profile", "1g.10gb=2", "--profile", "2g.20gb=1")
        before = self.mig()
        for args in ((), ("--profile", "1g.10gb=2", "--profile", "2g.20gb=1")):
            self.setup_mig(*args)
            self.assertEqual(self.mig(), before)

    def test_after_a_reboot_the_instances_have_the_ids_they_had(self):
        self.setup_mig("--profile", "1g.10gb=2")
        before = self.mig()
        shutil.rmtree(self.kernel.mdevs)
        self.kernel.mdevs.mkdir()
        (self.state / "parts-0").unlink()
        self.qemu("qemu-gpus.sh")
        self.assertEqual(self.mig(), before)
        self.assertEqual(sorted(path.name for path in self.kernel.mdevs.iterdir()), sorted(line[2] for line in before))
        self.assertEqual([profile for profile, _ in self.parts()], ["1g.10gb"] * 2)

    def test_nothing_is_made_without_a_layout(self):
        self.assertIn("there is no layout", self.setup_mig(fails=True).stderr)
        self.qemu("qemu-gpus.sh")

    def test_a_dry_run_makes_nothing(self):
        done = self.setup_mig("--profile", "1g.10gb=2", "--dry-run")
        self.assertIn("would make 2 more of 1g.10gb", done.stderr)
        self.assertEqual((self.mig(), list(self.kernel.mdevs.iterdir())), ([], []))
        self.assertFalse((self.home / "mig-layout.conf").exists())

    def test_a_card_that_has_to_be_reset_is_named_and_not_reset(self):
        for obstacle in ("busy", "pending"):
            (self.state / obstacle).touch()
            done = self.setup_mig("--profile", "1g.10gb=1", fails=True)
            self.assertIn("nvidia-smi -i 0 --gpu-reset", done.stderr)
            (self.state / obstacle).unlink()

    def test_listing_leaves_out_what_is_gone(self):
        self.setup_mig("--profile", "1g.10gb=2")
        gone, kept = self.mig()
        shutil.rmtree(self.kernel.mdevs / gone[2])
        self.assertEqual(self.setup_mig("--list").stdout.split(), kept)

    def test_taking_one_out_takes_its_partition_and_its_place_in_the_layout(self):
        self.setup_mig("--profile", "1g.10gb=2", "--profile", "2g.20gb=1")
        (_, _, uuid, _), other, wide = self.mig()
        self.setup_mig("--unbind", uuid.upper())
        self.assertEqual(self.mig(), [other, wide])
        self.assertFalse((self.kernel.mdevs / uuid).exists())
        self.assertEqual(self.parts(), [("1g.10gb", "8"), ("2g.20gb", "9")])
        self.assertEqual(self.layout(), "1g.10gb=1\n2g.20gb=1\n")
        self.assertIn("there is no instance", self.setup_mig("--unbind", uuid).stderr)
        self.setup_mig("--unbind", "MIG-1", fails=True)
        # Neither a reboot nor a VM that gives an instance back brings it again.
        self.setup_mig()
        self.assertEqual((self.mig(), len(self.parts())), ([other, wide], 2))
        self.setup_mig("--unbind", wide[2])
        self.assertEqual((self.parts(), self.layout()), ([("1g.10gb", "8")], "1g.10gb=1\n"))

    def test_the_partition_that_another_guest_has_is_not_the_one_that_goes(self):
        self.setup_mig("--profile", "1g.10gb=2")
        (self.state / "used").write_text("7\n")
        self.setup_mig("--unbind", self.mig()[0][2])
        self.assertEqual(self.parts(), [("1g.10gb", "7")])

    def test_one_whose_partition_is_in_use_is_finished_by_the_next_run(self):
        self.setup_mig("--profile", "1g.10gb=1")
        uuid = self.mig()[0][2]
        (self.state / "used").write_text("7\n")
        self.assertIn("run this again", self.setup_mig("--unbind", uuid, fails=True).stderr)
        self.assertEqual((self.parts(), self.layout()), ([("1g.10gb", "7")], "1g.10gb=1\n"))
        (self.state / "used").unlink()
        self.setup_mig("--unbind", uuid)
        self.assertEqual((self.parts(), self.mig(), self.layout()), ([], [], ""))

    def test_a_run_that_was_cut_short_after_the_partition_takes_no_second_one(self):
        self.setup_mig("--profile", "1g.10gb=2")
        uuid, inventory = self.mig()[0][2], (self.home / "mig-inventory.txt").read_text()
        self.setup_mig("--unbind", uuid)
        (self.home / "mig-inventory.txt").write_text(inventory)
        self.setup_mig("--unbind", uuid)
        self.assertEqual((len(self.parts()), len(self.mig()), self.layout()), (1, 1, "1g.10gb=1\n"))

    def test_one_that_a_guest_uses_is_not_taken_out(self):
        self.setup_mig("--profile", "1g.10gb=1")
        uuid = self.mig()[0][2]
        remove = self.kernel.mdevs / uuid / "remove"
        remove.unlink()
        remove.write_text("")
        self.assertIn("a guest uses it", self.setup_mig("--unbind", uuid, fails=True).stderr)
        self.assertEqual((self.mig()[0][2], len(self.parts()), self.layout()), (uuid, 1, "1g.10gb=1\n"))

    def test_wrong_requests(self):
        for args in (("--profile", "foo=1"), ("--profile", "1g.10gb"), ("--profile", "1g.10gb=0"), ("--profile",), ("x",)):
            self.setup_mig(*args, fails=True)

    def test_without_the_tool_it_is_said(self):
        (self.bin / "nvidia-smi").unlink()
        self.assertIn("nvidia-smi is missing", self.setup_mig("--list", fails=True).stderr)

    def test_a_partition_without_a_device_is_used_before_another_is_made(self):
        (self.state / "mode-0").write_text("Enabled")
        (self.state / "parts-0").write_text("1g.10gb 7 0\n")
        self.setup_mig("--profile", "1g.10gb=1")
        self.assertEqual(self.parts(), [("1g.10gb", "7")])
        self.assertEqual(len(self.mig()), 1)


FAKE_AGENT = """#!/bin/sh
echo "$*" >>"$SYSTEMCTL_DIR/agent"
[ "$1" != image ] || for file in vmlinuz.bin initramfs.img rootfs-fused.ext4; do [ -e "$4/$file" ] || : >"$4/$file"; done
"""


class Services(GpuHost):
    AGENT, ENV = "/usr/local/bin/qemu-agent", f"{HOME}/.env"

    def give_agent(self):
        self.put(self.AGENT, FAKE_AGENT)
        self.put(f"{HOME}/vmlinuz.bin", b"", 0o644)

    def test_the_units_get_this_hosts_paths(self):
        self.put(self.AGENT, FAKE_AGENT)
        self.put("/srv/gpu/vmlinuz.bin", b"", 0o644)
        done = self.qemu("qemu-agent.sh", "install-service", QEMU_DIR="/srv/gpu", QEMU_AGENT_PORT="9999")
        units = self.at("/etc/systemd/system")
        text = (units / "qemu-agent.service").read_text() + (units / "qemu-gpus.service").read_text()
        for line in ("EnvironmentFile=/srv/gpu/.env", "Environment=QEMU_DIR=/srv/gpu", "Environment=QEMU_AGENT_PORT=9999",
                     f"Environment=MIG_SETUP_SCRIPT={QEMU}/qemu-mig-setup.sh", f"ExecStart={QEMU}/qemu-gpus.sh"):
            self.assertIn(f"\n{line}\n", text)
        self.assertNotIn("/var/lib/fuse-gpu", text)
        token = self.settings("/srv/gpu/.env")["QEMU_AGENT_TOKEN"]
        self.assertIn(f"QEMU_BASE_URL=http://10.9.8.7:9999\nQEMU_TOKEN={token}\n", done.stdout)
        self.assert_secret("/srv/gpu/.env")
        self.assertNotIn(token, done.stderr)

    def test_again_restarts_nothing_and_leaves_no_trace_when_it_goes(self):
        self.give_agent()
        self.qemu("qemu-agent.sh", "install-service")
        before = self.everything()
        self.forget_calls()
        self.qemu("qemu-agent.sh", "install-service")
        self.assertEqual(self.everything(), before)
        self.assertEqual(self.calls(), ["enable qemu-gpus.service qemu-agent.service", "start qemu-agent.service"])
        self.qemu("qemu-agent.sh", "uninstall-service")
        self.assertEqual(list(self.at("/etc/systemd/system").iterdir()), [])
        self.assertTrue(self.at(self.ENV).exists())
        self.qemu("qemu-agent.sh", "install-service")
        self.qemu("qemu-agent.sh", "uninstall-service", "--purge")
        self.assertEqual(self.everything(), {})

    def test_without_an_image_it_says_what_makes_one(self):
        self.put(self.AGENT, FAKE_AGENT)
        self.assertIn("run ./qemu-install.sh first", self.qemu("qemu-agent.sh", "install-service", fails=True).stderr)

    def test_the_installer_brings_what_is_missing_and_keeps_what_is_there(self):
        for tool in ("qemu-system-x86_64", "qemu-img", "lspci", "ip", "nft", "mkfs.ext4", "mmdebstrap", "lz4", "zstd", "xz"):
            self.script(self.bin / tool, program())
        agents = archive(**{"qemu-agent": FAKE_AGENT.encode()})
        self.releases.add("v1.2.3", **{f"fuse-agent_Linux_{ARCH}.tar.gz": agents, f"fused_Linux_{ARCH}": program("fused")})
        done = self.qemu("qemu-install.sh")
        self.assertIn("no IOMMU groups", done.stderr)
        self.assertEqual(self.settings(self.ENV)["BASE_ROOTFS"], f"{HOME}/rootfs-fused.ext4")
        before = self.everything()
        self.qemu("qemu-install.sh")
        self.assertEqual(self.everything(), before)
        self.put(f"{HOME}/rootfs-cuda.qcow2", b"", 0o644)
        self.at(self.ENV).unlink()
        self.qemu("qemu-install.sh")
        self.assertFalse(self.at(self.ENV).exists(), "an image with CUDA is the default")


class Tests(GpuHost):
    def test_what_cannot_run_here_says_so(self):
        done = self.qemu("qemu-agent-test.sh", QEMU_AGENT_URL="http://127.0.0.1:9")
        self.assertEqual(done.stdout, "SKIP qemu-agent-test: no agent answers at http://127.0.0.1:9\n")
        done = self.qemu("qemu-test.sh", QEMU_AGENT_URL="http://127.0.0.1:9")
        self.assertEqual(done.stdout, "SKIP qemu-test: no agent answers at http://127.0.0.1:9\n")
        for wrong in (("10.201.1.2",), ("a", "b")):
            self.qemu("qemu-test.sh", *wrong, fails=True)
        self.assertIn("SKIP qemu-e2e: FUSE_GPU_E2E=1 asks for it", self.qemu("qemu-e2e.sh").stdout)
        asked = {"FUSE_GPU_E2E": "1"}
        self.assertIn("SKIP qemu-e2e: neither", self.qemu("qemu-e2e.sh", **asked).stdout)
        there = {**asked, "QEMU_BASE_URL": self.releases.url, "QEMU_TOKEN": "t"}
        self.assertIn("SKIP qemu-e2e: no agent that takes QEMU_TOKEN", self.qemu("qemu-e2e.sh", **there).stdout)

    def test_an_image_with_cuda_needs_a_driver_branch_and_a_plain_image(self):
        for args in ((), ("latest",), ("550", "x")):
            self.assertIn("usage", self.qemu("qemu-bake-cuda-rootfs.sh", *args, fails=True).stderr)
        done = self.qemu("qemu-bake-cuda-rootfs.sh", "550", fails=True)
        self.assertIn("run ./qemu-install.sh first", done.stderr)


class Bake(GpuHost):
    """Everything but the inside of the guest: mounts and a chroot that only write down."""

    def setUp(self):
        super().setUp()
        self.mount, self.log = self.root / "mnt", self.root / "log"
        self.put(f"{HOME}/rootfs-fused.ext4", b"plain", 0o644)
        self.put(f"{HOME}/image.json", '{"kernel_version": "6.1.0-1-cloud-amd64"}', 0o644)
        self.put(f"{HOME}/.env", f"QEMU_AGENT_TOKEN=t\nBASE_ROOTFS={HOME}/rootfs-fused.ext4\n", 0o600)
        for tool in ("mount", "umount", "resize2fs", "e2fsck"):
            self.script(self.bin / tool, f'#!/bin/sh\necho "{tool} $*" >>{self.log}\nmkdir -p {self.mount}/etc {self.mount}/tmp {self.mount}/usr/lib\n')
        self.script(self.bin / "mountpoint", "#!/bin/sh\nexit 1\n")
        self.script(self.bin / "curl", "#!/bin/sh\nwhile [ $# -gt 1 ]; do [ $1 != --output ] || echo deb >$2; shift; done; printf '200 '\n")
        self.script(self.bin / "qemu-img", f'#!/bin/sh\necho "qemu-img $*" >>{self.log}\ncp "$4" "$5"\n')
        self.chroot("mkdir -p $1/lib/modules/6.1.0-1-cloud-amd64/updates; : >$1/lib/modules/6.1.0-1-cloud-amd64/updates/nvidia.ko")

    def chroot(self, body):
        self.script(self.bin / "chroot", f'#!/bin/sh\necho "chroot $*" >>{self.log}\ncat >>{self.log}\n{body}\n')

    def bake(self, **kwargs):
        work = {"QEMU_BAKE_MOUNT": str(self.mount), "QEMU_BAKE_WORK": str(self.root / "work"), "QEMU_ROOTFS_SIZE": "1M"}
        return self.qemu("qemu-bake-cuda-rootfs.sh", "550", **work, **kwargs)

    def test_the_driver_is_built_for_the_guests_kernel(self):
        self.bake()
        log = self.log.read_text()
        self.assertRegex(log, r"chroot \S+ /bin/sh -eu -s -- 6\.1\.0-1-cloud-amd64 550\n")
        self.assertIn('"cuda-drivers-$driver"', log)
        self.assertTrue((self.home / "rootfs-cuda.qcow2").exists())
        self.assertNotIn("BASE_ROOTFS", self.settings(f"{HOME}/.env"), "the image is the default now")
        self.assertEqual((self.home / "rootfs-cuda.qcow2.driver").read_text(), "550 6.1.0-1-cloud-amd64\n")
        self.assertFalse((self.root / "work").exists())
        mounts = re.findall(r"^mount .* (\S+)$", log, re.M)
        self.assertEqual(sorted(re.findall(r"^umount (\S+)$", log, re.M)), sorted([*mounts[1:], f"{self.mount}/"]))

    def test_variants_of_the_image_are_baked_and_nothing_else_is_taken_for_one(self):
        self.put("/usr/local/bin/qemu-agent", FAKE_AGENT)
        self.put(f"{HOME}/fused", program("fused"))
        self.qemu("qemu-bake-rootfs.sh", "services", "node")
        calls = (self.calls_dir / "agent").read_text()
        self.assertTrue(calls.endswith(f"--fused {self.home}/fused --variant services --variant node\n"), calls)
        for word in "--now", "../x", "":
            self.assertIn("usage: qemu-bake-rootfs.sh", self.qemu("qemu-bake-rootfs.sh", word, fails=True).stderr)

    def test_a_new_kernel_or_a_refresh_makes_the_image_again_and_nothing_else_does(self):
        self.put("/usr/local/bin/qemu-agent", FAKE_AGENT)
        self.put(f"{HOME}/fused", program("fused"))
        work = {"QEMU_BAKE_MOUNT": str(self.mount), "QEMU_BAKE_WORK": str(self.root / "work"), "QEMU_ROOTFS_SIZE": "1M"}
        made = lambda: self.log.read_text().count("cuda-drivers") if self.log.exists() else 0
        self.qemu("qemu-bake-rootfs.sh", **work)
        self.assertEqual(made(), 0, "no image with CUDA, none is made")
        self.bake()
        self.qemu("qemu-bake-rootfs.sh", **work)
        self.assertEqual(made(), 1)
        self.qemu("qemu-bake-rootfs.sh", "--refresh", **work)
        self.assertEqual(made(), 2)
        self.put(f"{HOME}/image.json", '{"kernel_version": "6.1.0-2-cloud-amd64"}', 0o644)
        self.chroot("mkdir -p $1/lib/modules/6.1.0-2-cloud-amd64; : >$1/lib/modules/6.1.0-2-cloud-amd64/nvidia.ko")
        self.qemu("qemu-bake-rootfs.sh", **work)
        self.assertEqual((self.home / "rootfs-cuda.qcow2.driver").read_text(), "550 6.1.0-2-cloud-amd64\n")

    def test_an_image_without_the_module_is_not_taken(self):
        self.put(f"{HOME}/rootfs-cuda.qcow2", b"before", 0o644)
        for body, said in ((":", "no nvidia module was built"), ("exit 1", "")):
            self.chroot(body)
            self.assertIn(said, self.bake(fails=True).stderr)
            self.assertEqual((self.home / "rootfs-cuda.qcow2").read_bytes(), b"before")
            self.assertFalse((self.root / "work").exists())


# Puts a device that QEMU makes into the place of each that the host would have.
SHIM = r"""#!/bin/sh
n=$#
for word in "$@"; do
  case $word in *'"vfio-pci"'*) word=edu ;; esac
  set -- "$@" "$word"
done
shift "$n"
exec qemu-system-x86_64 "$@"
"""


class Live(GpuHost):
    """From a card that its driver has to a guest that has it, by the scripts that operators type."""

    def setUp(self):
        need_root()
        need_programs("qemu-agent", "fuse")
        need_tools("qemu-system-x86_64", "nft")
        need_image()
        # The host of the test has a /tmp of its own.
        self.addCleanup(setattr, tempfile, "tempdir", tempfile.tempdir)
        tempfile.tempdir = str(BINARIES)
        super().setUp()
        self.cards(("65", "11", "NVIDIA A100-SXM4-40GB"))
        self.script(self.bin / "qemu", SHIM)

    def test_bound_served_and_in_a_guest(self):
        script = f"""ln -s {BINARIES}/qemu-agent /usr/local/bin/
            mkdir -p {HOME} && cd {HOME}
            ln -s {IMAGE}/initramfs.img {IMAGE}/rootfs-fused.ext4 .
            ln -s {IMAGE}/vmlinux.bin vmlinuz.bin
            (umask 077; printf '%s\\n' QEMU_AGENT_TOKEN=t0ken BASE_ROOTFS={HOME}/rootfs-fused.ext4 >.env)
            cd {QEMU}
            ./qemu-vfio-bind.sh
            (set -a; . {HOME}/.env; QEMU_DIR={HOME} QEMU_ACCELERATOR=tcg QEMU_BIN={self.bin}/qemu exec /usr/local/bin/qemu-agent) &
            agent=$!
            until curl --silent --output /dev/null http://127.0.0.1:8091/; do kill -0 $! || exit 1; sleep 0.2; done
            ./qemu-agent-test.sh
            ./qemu-test.sh
            token() {{ printf 'header = "Authorization: Bearer t0ken"\n'; }}
            token | curl --silent --fail --config - -d '{{"name":"there","memory_mb":256}}' http://127.0.0.1:8091/v1/vm
            ./qemu-test.sh there
            PATH=/usr/local/bin:$PATH QEMU_BIN={self.bin}/qemu {BINARIES}/fuse doctor --machine --no-boot -o json >{self.root}/doctor.json || true
            # This image has no driver of NVIDIA's, so a guest with a device in it is found out.
            ! FUSE_GPU_TEST=1 ./qemu-test.sh
            # A guest is left for what takes everything away.
            kill "$agent" && wait "$agent"
            ./qemu-agent.sh uninstall-service --purge
            [ ! -e {HOME} ] && [ ! -e /usr/local/bin/qemu-agent ]
            """
        env = {**self.env, "PUBLIC_HOST": "127.0.0.1"}
        del env["DESTDIR"]
        done = subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "bash", "-c", HOST + script],
            env=env, capture_output=True, text=True, timeout=600,
        )
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        for said in ("capacity, with a GPU", "exec in a guest kernel", "snapshot 501", "nothing is left"):
            self.assertRegex(done.stderr, rf"ok: .*{said}")
        doctor = json.loads((self.root / "doctor.json").read_text())
        found = {finding["check"]: finding for finding in doctor["findings"]}
        for check in ("vmm", "image", "firmware", "iommu", "gpu inventory", "vfio-pci", "gpu 0000:65:00.0",
                      "gpu agent token", "gpu agent"):
            self.assertEqual(found[check]["status"], "ok", found[check])
        kernel = r"kernel: [0-9.]+-\S+\nSKIP qemu-test: nvidia-smi in the guest"
        self.assertRegex(done.stdout, rf"host name: test-[0-9]+\n{kernel}")
        self.assertRegex(done.stdout, rf"host name: there\n{kernel}")
        self.assertIn("the guest's driver does not see a GPU", done.stderr)
        self.assertIn("1 VMs stopped", done.stdout)
        self.assertEqual(self.kernel.driver("0000:65:00.1"), "vfio-pci")


if __name__ == "__main__":
    unittest.main()
