"""The cluster files are what Ray's launcher and the KubeRay operator accept; a misspelt key fails here."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
ONPREM = ROOT / "cluster" / "onprem.yaml"
KUBERAY = ROOT / "cluster" / "kuberay-raycluster.yaml"
SCHEMA = ROOT / "tests" / "data" / "raycluster-v1-schema.json.gz"

# Keys that a schema leaves free, because a person chooses them.
FREE = ("metadata", "rayStartParams", "requests", "limits", "file_mounts")
Path_ = tuple[str | int, ...]


def pinned(package: str) -> str:
    found = re.search(rf"(?m)^{package}==(\S+)$", (ROOT / "constraints.txt").read_text())
    assert found
    return found[1]


def keys(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The place of every key whose name a schema fixes."""
    if isinstance(value, dict) and not (path and path[-1] in FREE):
        for key, inner in value.items():
            yield (*path, key)
            yield from keys(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from keys(inner, (*path, index))


def misspelt(document: dict[str, Any], path: Path_) -> dict[str, Any]:
    """The document with one letter doubled in the key at `path`."""
    copy = deepcopy(document)
    place: Any = copy
    for step in path[:-1]:
        place = place[step]
    place[f"{path[-1]}{str(path[-1])[-1]}"] = place.pop(path[-1])
    return copy


# --- ray up


@pytest.fixture(scope="module")
def onprem() -> dict[str, Any]:
    return dict(yaml.safe_load(ONPREM.read_text()))


def launch(config: dict[str, Any]) -> dict[str, Any]:
    """What `ray up` does with a file before it reaches for a machine."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = dict(prepare_config(deepcopy(config)))
    validate_config(prepared)
    # Ray leaves the provider's own section open; these are the keys that its local provider reads.
    unread = set(config["provider"]) - {"type", "head_ip", "worker_ips", "external_head_ip"}
    if unread:
        raise jsonschema.ValidationError(f"provider: {unread}")
    return prepared


def test_ray_up_takes_the_file(onprem: dict[str, Any]) -> None:
    prepared = launch(onprem)
    node_type = prepared["available_node_types"]["local.cluster.node"]
    assert node_type["min_workers"] == onprem["min_workers"] == len(onprem["provider"]["worker_ips"])
    assert node_type["max_workers"] == prepared["max_workers"] == onprem["max_workers"]


def test_ray_up_refuses_every_misspelt_key(onprem: dict[str, Any]) -> None:
    from click import ClickException

    for path in keys(onprem):
        with pytest.raises((jsonschema.ValidationError, ClickException, KeyError)):
            launch(misspelt(onprem, path))


def test_what_is_mounted_is_here_and_installs_god_ray(onprem: dict[str, Any]) -> None:
    mounted = {remote: local for remote, local in onprem["file_mounts"].items() if not local.startswith("~")}
    assert {"god_ray", "pyproject.toml", "constraints.txt"} <= set(mounted.values())
    missing = [local for local in mounted.values() if not (ROOT / local).exists()]
    assert not [name for name in missing if name != "README.md"]
    install = onprem["setup_commands"][-1]
    assert install.endswith("pip install --quiet -c ~/god_ray/constraints.txt ~/god_ray")


def test_the_commands_are_shell(onprem: dict[str, Any]) -> None:
    for part in ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands"):
        for command in onprem[part]:
            subprocess.run(["bash", "-n", "-c", command], check=True)


def test_ray_start_knows_its_options(onprem: dict[str, Any]) -> None:
    from ray.scripts.scripts import start

    known = {option for parameter in start.params for option in parameter.opts}
    for part in ("head_start_ray_commands", "worker_start_ray_commands"):
        used = {word.split("=")[0] for word in shlex.split(onprem[part][-1]) if word.startswith("--")}
        assert used
        assert used <= known
        assert "RAY_AUTH_MODE=token" in onprem[part][-1]


# --- KubeRay


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """KubeRay's, closed: an API server drops unknown fields without a word, so a typo would do nothing."""
    schema = json.loads(gzip.decompress(SCHEMA.read_bytes()))
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    schema["properties"]["metadata"] = {
        "type": "object",
        "required": ["name"],
        "properties": {name: {} for name in ("name", "namespace", "labels", "annotations")},
    }
    schema["properties"]["apiVersion"] = {"const": "ray.io/v1"}
    schema["properties"]["kind"] = {"const": "RayCluster"}
    close(schema)
    return dict(schema)


def close(schema: dict[str, Any]) -> None:
    if "properties" in schema:
        schema.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
        for inner in schema["properties"].values():
            close(inner)
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            close(inner)


@pytest.fixture(scope="module", params=["cpu", "cpu and gpu"])
def cluster(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The manifest as it is, and with the GPU workers taken in."""
    text = KUBERAY.read_text()
    if request.param != "cpu":
        text = text.replace("#| ", "")
    manifest = dict(yaml.safe_load(text))
    groups = [group["groupName"] for group in manifest["spec"]["workerGroupSpecs"]]
    assert groups == request.param.split(" and ")
    return manifest


def test_the_operator_takes_the_manifest(cluster: dict[str, Any], schema: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(schema).validate(cluster)


def test_the_schema_refuses_every_misspelt_key(cluster: dict[str, Any], schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft7Validator(schema)
    passed = [path for path in keys(cluster) if validator.is_valid(misspelt(cluster, path))]
    assert not passed


def test_the_schema_refuses_wrong_values(cluster: dict[str, Any], schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft7Validator(schema)
    for change in (
        lambda spec: spec["workerGroupSpecs"][0].update(minReplicas="none"),
        lambda spec: spec["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
        lambda spec: spec["autoscalerOptions"].update(version="v3"),
        lambda spec: spec["workerGroupSpecs"][0].pop("template"),
    ):
        changed = deepcopy(cluster)
        change(changed["spec"])
        assert not validator.is_valid(changed)


def test_the_cluster_scales_within_bounds_on_our_ray(cluster: dict[str, Any]) -> None:
    spec = cluster["spec"]
    assert spec["enableInTreeAutoscaling"] is True
    assert spec["rayVersion"] == pinned("ray")
    for group in spec["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert f"rayproject/ray:{pinned('ray')}-" in (ROOT / "cluster" / "Dockerfile").read_text()


def test_pods_state_their_resources_and_hold_no_secret(cluster: dict[str, Any]) -> None:
    spec = cluster["spec"]
    pods = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    claimed = set()
    for pod in (group["template"]["spec"] for group in pods):
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            resources = container["resources"]
            assert resources["requests"] == resources["limits"]
            assert {"cpu", "memory"} <= set(resources["limits"])
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert "env" not in container
        claimed |= {volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]}
    assert claimed == {"god-ray-runs"}, "all pods of a run must see the same storage"
    assert spec["authOptions"] == {"mode": "token"}
