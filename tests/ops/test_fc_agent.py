"""fc-agent.sh and its relatives: the services of a host that runs guests."""

import json
import subprocess
import unittest

from support import ARCH, FIRECRACKER, Stage, archive, program

SCRIPT = FIRECRACKER / "fc-agent.sh"
CONFIG, ORCHESTRATOR = "/etc/default/orchestrator", "/usr/local/bin/orchestrator"
AGENT, ENV = "/usr/local/bin/fc-agent", "/var/lib/fuse/.env"
UNITS = "/etc/systemd/system"
ASSET = f"fuse_Linux_{ARCH}.tar.gz"

# Writes down what it is asked, and makes the image's files.
FAKE_AGENT = """#!/bin/sh
echo "$*" >>"$SYSTEMCTL_DIR/agent"
[ "$1" != image ] || for file in vmlinux.bin initramfs.img rootfs-fused.ext4; do [ -e "$4/$file" ] || : >"$4/$file"; done
"""


class Host(Stage):
    def fc(self, *args, **kwargs):
        return self.run_script(SCRIPT, *args, **kwargs)

    def agent_was_told(self):
        """The commands that the agent's program was run with."""
        told = self.calls_dir / "agent"
        return told.read_text().splitlines() if told.exists() else []

    def give_agent(self):
        self.put(AGENT, FAKE_AGENT)
        self.put("/var/lib/fuse/vmlinux.bin", b"", 0o644)

    def tools(self):
        """Packages that are there already."""
        for tool in ("mmdebstrap", "lz4", "zstd", "xz", "nft", "mkfs.ext4"):
            self.script(self.bin / tool, "#!/bin/sh\n")

    def prepare_bootstrap(self):
        """All that bootstrap would fetch; the control plane answers on the release server. What it is sent is returned."""
        self.tools()
        self.put(AGENT, FAKE_AGENT)
        self.put("/var/lib/fuse/fused", program("fused"))
        self.put("/usr/local/bin/firecracker", program("vmm"))
        self.put(ORCHESTRATOR, program("there"))
        # An earlier run without a database left the placeholder and another port.
        self.fc("install-orchestrator")
        bodies = []

        def answer(request):
            if request.path == "/ready":
                body, status = b"{}", 200
            elif request.command == "GET":
                return self.releases.answer(request)
            else:
                length = int(request.headers["Content-Length"])
                bodies.append((request.path, request.headers["Authorization"], json.loads(request.rfile.read(length))))
                body, status = b"{}", 201
            request.send_response(status)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)

        handler = self.releases.server.RequestHandlerClass
        handler.do_GET, handler.do_POST = answer, answer
        self.port = self.releases.url.rsplit(":", 1)[1]
        text = self.at(CONFIG).read_text().replace("ORCH_LISTEN=:8080", f"ORCH_LISTEN=127.0.0.1:{self.port}")
        self.put(CONFIG, text, 0o600)
        return bodies


class Orchestrator(Host):
    def setUp(self):
        super().setUp()
        self.source = self.script(self.root / "given", program("given"))

    def test_without_a_database_it_is_installed_and_left_stopped(self):
        done = self.fc("install-orchestrator", ORCH_BIN_SRC=str(self.source))
        settings = self.settings(CONFIG)
        self.assertEqual(settings["FIRECRACKER_BASE_URL"], "http://127.0.0.1:8090")
        self.assertEqual(settings["FIRECRACKER_TOKEN"], self.settings(ENV)["FC_AGENT_TOKEN"])
        self.assertIn("USER:PASSWORD@HOST", settings["DATABASE_URL"])
        self.assertEqual(settings["ORCH_REQUIRE_AUTH"], "true")
        secrets = [settings[name] for name in ("FIRECRACKER_TOKEN", "ORCH_AUTH_TOKEN", "TOKEN_ENCRYPTION_KEY")]
        self.assertEqual(len(set(secrets)), 3)
        for secret in secrets:
            self.assertRegex(secret, r"^[0-9a-f]{64}$")
        self.assert_secret(CONFIG)
        self.assert_secret(ENV)
        self.assertIn("FUSE_BASE_URL=http://10.9.8.7:8080\n", done.stdout)
        self.assertIn(f"FUSE_TOKEN={settings['ORCH_AUTH_TOKEN']}\n", done.stdout)
        self.assertIn("sudoedit /etc/default/orchestrator", done.stdout)
        self.assertEqual(self.calls()[1:], ["daemon-reload", "enable orchestrator.service"])

    def test_with_a_database_it_is_started(self):
        self.fc("install-orchestrator", ORCH_BIN_SRC=str(self.source), DATABASE_URL="postgres://a:b@c/d")
        self.assertEqual(self.settings(CONFIG)["DATABASE_URL"], "postgres://a:b@c/d")
        self.assertEqual(self.calls()[-1], "restart orchestrator.service")

    def test_running_it_again_changes_nothing(self):
        first = self.fc("install-orchestrator", ORCH_BIN_SRC=str(self.source), DATABASE_URL="postgres://a:b@c/d")
        before = self.everything()
        again = self.fc("install-orchestrator", ORCH_BIN_SRC=str(self.source), DATABASE_URL="postgres://other/x")
        self.assertEqual(again.stdout, first.stdout)
        self.assertEqual(self.everything(), before)
        self.assertEqual(self.calls()[-1], "start orchestrator.service")

    def test_where_the_program_comes_from(self):
        self.releases.add("v1.2.3", **{ASSET: archive(orchestrator=program("released"))})
        self.fc("install-orchestrator")
        self.assertEqual(self.at(ORCHESTRATOR).read_bytes(), program("released"))
        self.put(ORCHESTRATOR, program("there"))
        self.fc("install-orchestrator")
        self.assertEqual(self.at(ORCHESTRATOR).read_bytes(), program("there"), "what is there is kept")
        self.script(self.cwd / "orchestrator", program("local"))
        self.fc("install-orchestrator")
        self.assertEqual(self.at(ORCHESTRATOR).read_bytes(), program("local"))
        self.fc("install-orchestrator", ORCH_BIN_SRC=str(self.source))
        self.assertEqual(self.at(ORCHESTRATOR).read_bytes(), program("given"))
        (self.cwd / "orchestrator").unlink()
        (self.cwd / "orchestrator").mkdir()
        self.fc("install-orchestrator")
        self.assertEqual(self.at(ORCHESTRATOR).read_bytes(), program("given"), "a directory is no program")

    def test_an_unproved_release_leaves_everything_as_it_was(self):
        self.releases.add("v1.2.3", **{ASSET: archive(orchestrator=program("released"))})
        self.releases.assets[f"/v1.2.3/{ASSET}"] = archive(orchestrator=program("evil"))
        done = self.fc("install-orchestrator", fails=True)
        self.assertIn("does not match checksums.txt", done.stderr)
        self.assertEqual(self.everything(), {})

    def test_refuses_beside_the_other_installation(self):
        self.enable("fuse-orchestrator")
        done = self.fc("install-orchestrator", ORCH_BIN_SRC=str(self.source), fails=True)
        self.assertIn("systemctl disable --now fuse-orchestrator", done.stderr)

    def test_a_purge_takes_its_key_and_its_store_along_and_says_so(self):
        self.fc("install-orchestrator", ORCH_BIN_SRC=str(self.source))
        self.put("/var/lib/private/fuse-orchestrator/fuse.db", b"", 0o600)
        done = self.fc("uninstall-orchestrator", "--purge")
        self.assertIn("without this TOKEN_ENCRYPTION_KEY its secrets are lost", done.stderr)
        self.assertEqual(list(self.everything()), [str(self.at(ENV))], "the token of the agent")
        self.fc("uninstall-orchestrator", "--purge")

    def test_a_purge_names_a_store_of_another_place(self):
        self.put(CONFIG, "DATABASE_URL=sqlite:///srv/fuse.db\n", 0o600)
        self.assertIn("stays: the database", self.fc("uninstall-orchestrator", "--purge").stderr)
        self.put(CONFIG, "DATABASE_URL=sqlite:///var/lib/fuse-orchestrator/fuse.db\n", 0o600)
        self.assertNotIn("stays:", self.fc("uninstall-orchestrator", "--purge").stderr)

    def test_a_package_keeps_its_program(self):
        self.put("/usr/bin/orchestrator", program("packaged"))
        self.fc("install-orchestrator")
        done = self.fc("uninstall-orchestrator", "--purge")
        self.assertIn("stays: /usr/bin/orchestrator, which is a package's", done.stderr)
        self.assertTrue(self.at("/usr/bin/orchestrator").exists())

    def test_uninstalling_keeps_the_configuration(self):
        self.fc("install-orchestrator", ORCH_BIN_SRC=str(self.source))
        self.fc("uninstall-orchestrator")
        self.assertFalse(self.at(f"{UNITS}/orchestrator.service").exists())
        self.assertTrue(self.at(CONFIG).exists() and self.at(ORCHESTRATOR).exists())
        self.assertEqual(self.fc("uninstall-orchestrator", "--all", fails=True).stdout, "")
        self.assertIn("disable --now orchestrator.service", self.calls())
        self.fc("uninstall-orchestrator")


class Agent(Host):
    def test_the_service_gets_this_hosts_paths(self):
        self.put("/srv/fc/vmlinux.bin", b"", 0o644)
        self.put(AGENT, FAKE_AGENT)
        done = self.fc("install-service", FC_DIR="/srv/fc", FC_AGENT_PORT="9999", FC_BIN="/opt/vmm")
        unit = self.at(f"{UNITS}/fc-agent.service").read_text()
        for line in ("EnvironmentFile=/srv/fc/.env", "Environment=FC_DIR=/srv/fc", "Environment=FC_AGENT_PORT=9999",
                     "Environment=FC_BIN=/opt/vmm", "KillMode=process", "Type=notify"):
            self.assertIn(f"\n{line}\n", unit)
        self.assertNotIn("/var/lib/fuse", unit)
        token = self.settings("/srv/fc/.env")["FC_AGENT_TOKEN"]
        self.assertEqual(
            done.stdout, f"FIRECRACKER_BASE_URL=http://10.9.8.7:9999\nFIRECRACKER_TOKEN={token}\n"
        )
        self.assertEqual(self.calls(), ["daemon-reload", "enable fc-agent.service", "restart fc-agent.service"])

    def test_running_it_again_restarts_nothing(self):
        self.give_agent()
        self.fc("install-service")
        before = self.everything()
        self.forget_calls()
        self.fc("install-service")
        self.assertEqual(self.everything(), before)
        self.assertEqual(self.calls(), ["enable fc-agent.service", "start fc-agent.service"])

    def test_uninstalling_says_what_stays_and_a_purge_ends_the_guests_first(self):
        self.give_agent()
        self.put("/usr/local/bin/firecracker", program("vmm"))
        self.fc("install-service")
        self.fc("install-updater")
        self.forget_calls()
        done = self.fc("uninstall-service")
        for path in ("/var/lib/fuse", AGENT, "/usr/local/bin/firecracker"):
            self.assertIn(f"stays: {path}\n", done.stderr)
        self.assertTrue(self.at(ENV).exists())
        self.assertFalse(self.at(f"{UNITS}/fc-agent.service").exists())
        self.assertTrue(self.at(f"{UNITS}/fc-update.timer").exists())
        self.assertNotIn("stop-vms", self.agent_was_told())

        self.fc("install-service")
        self.forget_calls()
        self.fc("uninstall-service", "--purge")
        self.assertEqual(self.calls()[0], "stop fc-agent.service", "guests end before what they run on")
        self.assertIn("stop-vms", self.agent_was_told())
        self.assertEqual(list(self.everything()), [str(self.at("/usr/local/bin/firecracker"))])
        self.fc("uninstall-service", "--purge")

    def test_a_purge_names_what_settings_keep_elsewhere_and_ends_guests_or_nothing(self):
        self.give_agent()
        self.put(ENV, "SNAPSHOTS_DIR=/srv/snapshots\nIMAGES_DIR=images\n", 0o600)
        self.put("/srv/snapshots/one", b"", 0o600)
        self.fc("install-service")
        self.put("/var/lib/fuse/agent-state/vms/a/meta.json", b"", 0o600)
        self.at(AGENT).unlink()
        done = self.fc("uninstall-service", "--purge", fails=True)
        self.assertIn("only it can end the guests of this host", done.stderr)
        self.assertTrue(self.at("/var/lib/fuse/agent-state/vms/a/meta.json").exists())
        self.assertTrue(self.at(f"{UNITS}/fc-agent.service").exists())
        self.give_agent()
        done = self.fc("uninstall-service", "--purge")
        self.assertIn("stays: /srv/snapshots\n", done.stderr)
        self.assertEqual(list(self.everything()), [str(self.at("/srv/snapshots/one"))])

    def test_a_purge_leaves_a_directory_that_may_be_somebody_elses(self):
        self.put("/srv/data/mine", b"", 0o644)
        done = self.fc("uninstall-service", "--purge", FC_DIR="/srv/data", fails=True)
        self.assertIn("remove it by hand", done.stderr)
        self.assertTrue(self.at("/srv/data/mine").exists())

    def test_a_token_is_made_once_and_other_settings_stay(self):
        self.put(ENV, "FUSE_MAX_VMS=10\n", 0o644)
        first = self.fc("env").stdout
        self.assertEqual(self.settings(ENV)["FUSE_MAX_VMS"], "10")
        self.assertEqual(self.fc("env").stdout, first)
        self.assert_secret(ENV)

    def test_a_certificate_is_made_once_and_named_by_what_is_printed(self):
        self.give_agent()
        self.fc("install-service")
        self.forget_calls()
        done = self.fc("install-certificate", PUBLIC_HOST="10.1.2.3")
        self.assertIn("restart fc-agent.service", self.calls())
        settings = self.settings(ENV)
        cert, key = (self.at(settings[f"FC_AGENT_TLS_{name}"]) for name in ("CERT", "KEY"))
        self.assertEqual(done.stdout, cert.read_text())
        self.assertEqual(key.stat().st_mode & 0o777, 0o600)
        shown = subprocess.run(["openssl", "x509", "-noout", "-ext", "subjectAltName,basicConstraints"],
                               input=done.stdout, capture_output=True, text=True, check=True).stdout
        self.assertIn("IP Address:10.1.2.3", shown)
        self.assertIn("CA:FALSE", shown)
        self.assertIn("FIRECRACKER_BASE_URL=https://10.1.2.3:8090", self.fc("env", PUBLIC_HOST="10.1.2.3").stdout)
        self.forget_calls()
        self.assertEqual(self.fc("install-certificate", PUBLIC_HOST="10.9.9.9").stdout, done.stdout)
        self.assertEqual(self.calls(), [])
        # In its last days it is made anew, and in its place.
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-days", "10", "-subj", "/CN=old", "-keyout", key, "-out", cert], check=True, capture_output=True)
        before = (cert.read_text(), self.at(ENV).read_text())
        renewed = self.fc("install-certificate", PUBLIC_HOST="10.1.2.3").stdout
        self.assertNotEqual(renewed, before[0])
        self.assertEqual((renewed, self.at(ENV).read_text()), (cert.read_text(), before[1]))
        self.assertIn("restart fc-agent.service", self.calls())
        # One that is somebody else's is left to them.
        self.at("/etc/their.crt").parent.mkdir(exist_ok=True)
        self.at("/etc/their.crt").write_text(before[0])
        self.put(ENV, b"FC_AGENT_TOKEN=t\nFC_AGENT_TLS_CERT=/etc/their.crt\nFC_AGENT_TLS_KEY=/etc/their.key\n", 0o600)
        self.assertEqual(self.fc("install-certificate", PUBLIC_HOST="10.1.2.3").stdout, before[0])
        for host, name in (("n1.r2.z3.x4", "DNS:n1.r2.z3.x4"), ("fuse.example", "DNS:fuse.example"), ("fd00::7", "IP Address:FD00:0:0:0:0:0:0:7")):
            cert.unlink()
            key.unlink()
            self.put(ENV, b"FC_AGENT_TOKEN=t\n", 0o600)
            printed = self.fc("install-certificate", PUBLIC_HOST=host).stdout
            shown = subprocess.run(["openssl", "x509", "-noout", "-ext", "subjectAltName"],
                                   input=printed, capture_output=True, text=True, check=True).stdout
            self.assertIn(name, shown)

    def test_the_old_name_of_the_token_file_is_taken_over(self):
        self.put("/var/lib/fuse/.fc-agent.env", "FC_AGENT_TOKEN=old\n", 0o600)
        self.assertIn("FIRECRACKER_TOKEN=old\n", self.fc("env").stdout)
        self.assertFalse(self.at("/var/lib/fuse/.fc-agent.env").exists())

    def test_without_an_image_it_says_what_to_run(self):
        self.put(AGENT, FAKE_AGENT)
        self.assertIn("./fc-install.sh", self.fc("install-service", fails=True).stderr)
        self.assertEqual(self.calls(), [])

    def test_start_and_stop_without_systemd(self):
        self.put(AGENT, (self.root / "x").as_posix())
        server = (
            "#!/usr/bin/env python3\nimport http.server, os, pathlib\n"
            "assert os.environ['FC_AGENT_TOKEN'] and os.environ['FUSE_MAX_VMS'] == 'a b'\n"
            "pathlib.Path('/proc/self/comm').write_text('fc-agent')\n"
            "http.server.HTTPServer(('127.0.0.1', int(os.environ['FC_AGENT_PORT'])), "
            "http.server.SimpleHTTPRequestHandler).serve_forever()\n"
        )
        self.put(AGENT, server)
        self.put(ENV, "FUSE_MAX_VMS=a b\n", 0o600)
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.addCleanup(lambda: self.fc("stop"))
        self.fc("start", FC_AGENT_PORT=port)
        pid = self.at("/var/lib/fuse/.fc-agent.pid").read_text().strip()
        again = self.fc("start", FC_AGENT_PORT=port)
        self.assertIn("runs already", again.stderr)
        self.assertEqual(self.at("/var/lib/fuse/.fc-agent.pid").read_text().strip(), pid)
        self.fc("stop")
        import pathlib

        self.assertFalse(pathlib.Path(f"/proc/{pid}/exe").exists())
        self.assertIn("no agent runs", self.fc("stop").stderr)

    def test_a_start_that_fails_says_why(self):
        self.put(AGENT, "#!/bin/sh\necho 'no /dev/kvm here'; exit 1\n")
        self.assertIn("no /dev/kvm here", self.fc("start", FC_AGENT_PORT="1", fails=True).stderr)

    def test_unknown_commands_and_paths_that_cannot_be_quoted_are_refused(self):
        self.assertIn("usage: fc-agent.sh", self.fc("frobnicate", fails=True).stderr)
        self.assertIn("usage: fc-agent.sh", self.fc("env", "more", fails=True).stderr)
        self.assertIn("--frob", self.fc("bootstrap", "--frob", fails=True).stderr)
        self.assertIn("must be an absolute path", self.fc("env", FC_DIR="/a b", fails=True).stderr)
        self.assertIn("must be an absolute path", self.fc("env", FC_DIR="relative", fails=True).stderr)

    def test_down_stops_the_agent_before_its_guests(self):
        self.give_agent()
        self.fc("install-service")
        self.run_script(FIRECRACKER / "fc-down.sh")
        self.assertEqual(self.calls()[-1], "stop fc-agent.service")
        self.assertEqual((self.calls_dir / "agent").read_text(), "stop-vms\n")


class Install(Host):
    def install(self, **kwargs):
        return self.run_script(FIRECRACKER / "fc-install.sh", **kwargs)

    def setUp(self):
        super().setUp()
        self.vmm = self.script(self.root / "vmm", program("vmm"))

    def test_fetches_agent_and_guest_agent_and_bakes(self):
        agent = archive(**{"fc-agent": FAKE_AGENT.encode()})
        self.releases.add("v1.2.3", **{f"fuse-agent_Linux_{ARCH}.tar.gz": agent, f"fused_Linux_{ARCH}": program("fused")})
        self.install(FC_BIN_SRC=str(self.vmm))
        self.assertEqual(self.at("/usr/local/bin/firecracker").read_bytes(), program("vmm"))
        self.assertEqual(self.at("/var/lib/fuse/fused").read_bytes(), program("fused"))
        out = self.at("/var/lib/fuse")
        self.assertEqual((self.calls_dir / "agent").read_text(), f"image build --out {out} --fused {out}/fused\n")
        count = len(self.releases.requests)
        self.install()
        self.assertEqual(len(self.releases.requests), count, "nothing is fetched twice")

    def test_bakes_variants_of_the_image(self):
        self.give_agent()
        out = self.at("/var/lib/fuse")
        with_guest_agent = {"FUSED_BIN_SRC": str(self.script(self.root / "fused", program("fused")))}
        self.run_script(FIRECRACKER / "fc-bake-rootfs.sh", "--refresh", "services", "node", **with_guest_agent)
        calls = (self.calls_dir / "agent").read_text()
        self.assertIn(f"image build --out {out} --fused {out}/fused --refresh --variant services --variant node\n", calls)
        for word in "--now", "../x":
            said = self.run_script(FIRECRACKER / "fc-bake-rootfs.sh", word, fails=True, **with_guest_agent).stderr
            self.assertIn("usage", said)

    def test_a_firecracker_with_another_digest_is_refused(self):
        self.give_agent()
        import platform

        cpu = platform.machine()
        name = f"firecracker-v9.9.9-{cpu}"
        body = archive(**{f"release-v9.9.9-{cpu}/{name}": program("vmm")})
        self.releases.assets[f"/v9.9.9/{name}.tgz"] = body
        self.put("/var/lib/fuse/fused", program("fused"))
        url = {"FC_RELEASE_URL": self.releases.url, "FC_VERSION": "v9.9.9"}
        self.assertIn("no digest is known", self.install(fails=True, **url).stderr)
        self.assertIn("does not match", self.install(fails=True, FC_SHA256="0" * 64, **url).stderr)
        self.assertFalse(self.at("/usr/local/bin/firecracker").exists())
        import hashlib

        self.install(FC_SHA256=hashlib.sha256(body).hexdigest(), **url)
        self.assertEqual(self.at("/usr/local/bin/firecracker").read_bytes(), program("vmm"))


class Bootstrap(Host):
    def test_from_bare_machine_to_registered_host(self):
        bodies = self.prepare_bootstrap()
        done = self.fc("bootstrap")
        settings = self.settings(CONFIG)
        self.assertEqual(settings["DATABASE_URL"], "sqlite:///var/lib/fuse-orchestrator/fuse.db")
        self.assert_secret(CONFIG)
        [(path, authorization, body)] = bodies
        self.assertEqual((path, authorization), ("/v1/hosts", f"Bearer {settings['ORCH_AUTH_TOKEN']}"))
        self.assertEqual((body["id"], body["region"], body["backend"]), ("local-fc", "local", "firecracker"))
        self.assertEqual(body["token"], self.settings(ENV)["FC_AGENT_TOKEN"])
        self.assertIn(f"fuse connect http://10.9.8.7:{self.port} --token {settings['ORCH_AUTH_TOKEN']} --master", done.stdout)
        self.assertEqual(self.settings("/var/lib/fuse/.fc-updater.env")["FUSE_ORCH_SERVICE"], "orchestrator.service")
        self.assertIn("enable --now fc-update.timer", self.calls())
        before = self.everything()
        self.fc("bootstrap")
        self.assertEqual(self.everything(), before)


if __name__ == "__main__":
    unittest.main()
