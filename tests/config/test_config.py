"""`config.yaml` and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.config import Config, OpenAIBackendConfig, load_config
from gateway.config.environment import read_secret
from gateway.config.errors import ConfigInvalid
from gateway.config.load import read_config
from gateway.config.policy.single_backend import upstream_config
from gateway.config.units import Address
from gateway.errors import StartupError
from gateway.features.triton.settings import TritonBackendConfig

REPOSITORY = Path(__file__).parents[2]
MAIN = "version: 1\nbackends:\n  main: {adapter: openai, url: https://host/v1}\n"


def load(folder: Path, text: str = MAIN, environ: Mapping[str, str] | None = None) -> Config:
    path = folder / "config.yaml"
    path.write_text(text)
    return load_config(path, environ or {})


def refused(folder: Path, text: str = MAIN, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        load(folder, text, environ)
    return [str(fault).removeprefix(f"{folder}/") for fault in caught.value.faults]


def test_everything_but_the_backends_has_a_default(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.server.listen == Address("127.0.0.1", 8080)
    assert (config.server.max_body, config.server.idle_timeout) == (10 * 2**20, 75)
    assert (config.store.url, config.embedder.adapter, config.index.adapter) == ("embedded", "onnx", "faiss")
    assert config.backends["main"] == OpenAIBackendConfig(adapter="openai", url="https://host/v1")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, MAIN + "embedder: {model_dir: models}\n")
    assert config.data_dir == tmp_path / "var"
    assert config.policies == tmp_path / "policies"
    assert config.embedder.model_dir == tmp_path / "models"


def test_the_configuration_of_the_repository_is_good() -> None:
    config = load_config(REPOSITORY / "config.yaml", {})
    large = config.backends["large"]
    assert isinstance(large, TritonBackendConfig)
    assert (large.model, large.embedding_model, large.tensors.prompt) == ("large", "embedder", "text_input")


def test_a_misspelt_adapter_is_one_slip_and_one_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, MAIN.replace("adapter", "adaptor"))
    expected = "backends.main.adaptor: unknown key, did you mean 'adapter'? expected adapter"
    assert str(caught.value).endswith(f":3: {expected}")


def test_a_missing_file_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigInvalid) as caught:
        load_config(None, {})
    assert str(caught.value) == (
        "config.yaml:1: (document): does not exist, expected a configuration file; --config names another, "
        "--upstream URL starts without one"
    )


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="not a file, expected a configuration file"):
        load_config(tmp_path, {})


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    environ = {
        "NEARHIT_SERVER__LISTEN": "0.0.0.0:80",
        "NEARHIT_SERVER__MAX_INFLIGHT": "7",
        "NEARHIT_STORE__TIMEOUT": "1s",
        "NEARHIT_DATA_DIR": "/srv/nearhit",
        "NEARHIT_BACKENDS__MAIN__MODEL": "other",
        "NEARHIT_BACKENDS__MAIN__TIMEOUTS__TOTAL": "5m",
    }
    config = load(tmp_path, MAIN + "server: {listen: 127.0.0.1:1}\n", environ)
    assert config.server.listen == Address("0.0.0.0", 80)
    assert (config.server.max_inflight, config.store.timeout) == (7, 1)
    assert config.data_dir == Path("/srv/nearhit")
    assert (config.backends["main"].model, config.backends["main"].timeouts.total) == ("other", 300)


def test_a_wrong_value_of_the_environment_names_its_variable(tmp_path: Path) -> None:
    assert refused(tmp_path, environ={"NEARHIT_SERVER__MAX_INFLIGHT": "many", "NEARHIT_STORE__TIMEOUT": "5"}) == [
        "environment: NEARHIT_SERVER__MAX_INFLIGHT: expected a whole number, got 'many'",
        "environment: NEARHIT_STORE__TIMEOUT: expected a duration such as 250ms, 30s, 5m, 24h or 7d, got 5",
    ]


def test_an_unknown_setting_names_the_nearest_one(tmp_path: Path) -> None:
    assert refused(tmp_path, environ={"NEARHIT_SERVER__LISTN": "x"}) == [
        "environment: NEARHIT_SERVER__LISTN: unknown setting, did you mean NEARHIT_SERVER__LISTEN? "
        "expected NEARHIT_SECTION__KEY with keys of config.yaml"
    ]


def test_variables_that_others_set_are_left_alone(tmp_path: Path) -> None:
    load(tmp_path, environ={"NEARHIT_PORT": "tcp://10.0.0.1:80", "NEARHIT_ADMIN_TOKEN": "s", "PATH": "/bin"})


def test_faults_of_file_and_environment_come_together(tmp_path: Path) -> None:
    faults = refused(tmp_path, "version: 2\nserver: {workers: 0, listn: 1}\n", {"NEARHIT_STORE__TIMEOUT": "soon"})
    assert [fault.split(": ")[1] for fault in faults] == [
        "(document)",
        "version",
        "server.listn",
        "server.workers",
        "NEARHIT_STORE__TIMEOUT",
    ]


def test_a_fault_never_repeats_what_came_from_a_variable(tmp_path: Path) -> None:
    text = MAIN.replace("https://host/v1", '"${URL}"')
    (fault,) = refused(tmp_path, text, {"URL": "ftp://s3cret"})
    assert fault == ("config.yaml:3: backends.main.url: expected a URL such as https://api.openai.com/v1, got '${URL}'")


NAMED = "backends.main.api_key_env"
KEYED = MAIN.replace("https://host/v1", '"${URL}", api_key_env: KEY')


@pytest.mark.parametrize("text", ["sk-1\n", "sk-1\r\n", "sk-1 ", "sk-1\t \n\n"])
def test_white_space_at_the_end_of_a_secret_is_dropped_with_a_warning(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(KEYED)
    environ = {"KEY": text, "URL": f"https://host/v1{text[4:]}", "NEARHIT_SERVER__MAX_INFLIGHT": f"8{text[4:]}"}
    reading = read_config(tmp_path / "config.yaml", environ)
    assert reading.config is not None
    assert reading.config.server.max_inflight == 8
    (backend,) = reading.config.backends.values()
    assert isinstance(backend, OpenAIBackendConfig)
    assert backend.url == "https://host/v1"
    assert read_secret(environ, "KEY", NAMED) == "sk-1"
    said = "\n".join(map(str, reading.warnings))
    assert said.count("ends with white space, which is dropped") == 3
    assert all(f"the environment variable {name} " in said for name in environ)
    assert "sk-1" not in said
    with pytest.raises(StartupError, match="KEY, which is not set"):
        read_secret({"KEY": " \n"}, "KEY", NAMED)


@pytest.mark.parametrize("control", ["\n", "\x00", "\x7f", "\x1b", "\x85", "\t"])
def test_a_secret_with_a_control_character_is_a_fault_that_names_its_variable(tmp_path: Path, control: str) -> None:
    secret = f"sk-1{control}2"
    faults = refused(tmp_path, KEYED, {"KEY": "x", "URL": f"https://{secret}"})
    faults += refused(tmp_path, KEYED, {"KEY": secret, "URL": "https://host/v1"})
    faults += refused(tmp_path, MAIN, {"NEARHIT_DATA_DIR": secret})
    with pytest.raises(StartupError) as caught:
        read_secret({"KEY": secret}, "KEY", NAMED)
    faults.append(str(caught.value))
    assert [name for fault in faults for name in ("KEY", "URL", "DATA_DIR") if name in fault]
    for fault in faults:
        assert f"has the control character U+{ord(control):04X}, expected one line of text" in fault
        assert "sk-1" not in fault


def test_each_key_that_names_a_secret_is_checked(tmp_path: Path) -> None:
    """All of them: a secret that `check` does not know of stops the gateway at its start."""
    text = """
auth: {admin_token_env: A}
store:
  {password_env: A, sentinel_password_env: A, erasure_key_env: A, encryption: {keys: [{env: A}]}, url: "redis+sentinel://host:1/name"}
jobs: {key_env: A, webhook_secret_env: A}
telemetry: {traces: {headers_env: A, endpoint: "http://127.0.0.1:4318"}}
"""
    faults = refused(tmp_path, MAIN + text)
    assert sum("the environment variable A is not set" in fault for fault in faults) == 8, faults


def test_an_unset_secret_is_a_fault_where_it_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path, MAIN + "auth: {admin_token_env: TOKEN}\n") == [
        "config.yaml:4: auth.admin_token_env: the environment variable TOKEN is not set, expected the secret in it"
    ]
    assert load(tmp_path, MAIN + "auth: {admin_token_env: TOKEN}\n", {"TOKEN": "x"}).auth.admin_token_env == "TOKEN"


def test_an_admin_port_for_other_machines_takes_a_token(tmp_path: Path) -> None:
    environ = {"NEARHIT_SERVER__ADMIN": "0.0.0.0:9090"}
    (fault,) = refused(tmp_path, environ=environ)
    assert "other machines can reach admin at 0.0.0.0:9090" in fault
    load(tmp_path, environ={**environ, "NEARHIT_AUTH__ADMIN_TOKEN_ENV": "TOKEN", "TOKEN": "x"})


def test_no_two_ports_are_one(tmp_path: Path) -> None:
    """Those that are not named included; port 0 is another one each time."""
    (fault,) = refused(tmp_path, environ={"NEARHIT_SERVER__LISTEN": "127.0.0.1:9090"})
    assert fault.endswith("server: listen and admin are both 127.0.0.1:9090, expected different ports")
    (fault,) = refused(tmp_path, environ={"NEARHIT_SERVER__GRPC": "127.0.0.1:8080"})
    assert fault.endswith("server: listen and grpc are both 127.0.0.1:8080, expected different ports")
    load(tmp_path, environ={"NEARHIT_SERVER__LISTEN": "127.0.0.1:0", "NEARHIT_SERVER__ADMIN": "127.0.0.1:0"})


def test_keys_are_hashes_by_tenant(tmp_path: Path) -> None:
    config = load(tmp_path, MAIN + f"auth: {{mode: keys, keys: {{acme: [{'AB' * 32}]}}}}\n")
    assert config.auth.keys == {"acme": ("ab" * 32,)}


@pytest.mark.parametrize("url", ["redis://h", "rediss://u:p@h:6379/0", "embedded"])
def test_a_store_is_embedded_or_a_redis(tmp_path: Path, url: str) -> None:
    assert load(tmp_path, MAIN + f"store: {{url: '{url}'}}\n").store.url == url


def test_an_upstream_alone_is_a_whole_configuration() -> None:
    config, policy = upstream_config("https://host/v1/", {"NEARHIT_SERVER__LISTEN": "127.0.0.1:0"})
    assert config.backends["main"].url == "https://host/v1"
    assert config.server.listen.port == 0
    (route,) = policy.routes
    assert route.exact_ttl_s == 3600
    assert route.semantic is not None
    assert route.semantic.acceptance.max_wrong_hits == 0.01
    assert route.target.backends == ("main",)


def test_an_address_of_anthropics_is_spoken_to_in_its_protocol() -> None:
    config, _ = upstream_config("https://api.anthropic.com/v1", {})
    assert config.backends["main"].adapter == "anthropic"


def test_a_wrong_upstream_is_told_so() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        upstream_config("host/v1")
    assert str(caught.value) == (
        "command line: --upstream: expected a URL such as https://api.openai.com/v1, got 'host/v1'"
    )


def test_a_backend_has_one_address_or_several(tmp_path: Path) -> None:
    text = (
        "version: 1\nbackends:\n  main:\n    adapter: openai\n    sticky: off\n    models: {'gpt-4o*': llama-70b}\n"
        "    upstreams: [https://a/v1/, {url: https://b/v1, weight: 2, api_key_env: KEY}]\n"
        "  one: {adapter: triton, url: grpc://host:8001, model: m, sticky: user, retries: {budget: 0, attempts: 3}}\n"
    )
    config = load(tmp_path, text, {"KEY": "secret"})
    main, one = config.backends["main"], config.backends["one"]
    assert [(a.url, a.weight) for a in main.addresses] == [("https://a/v1", 1), ("https://b/v1", 2)]
    assert [(a.url, a.weight) for a in one.addresses] == [("grpc://host:8001", 1)]
    assert (main.sticky, main.retries.budget, main.retries.attempts) == ("off", 0.2, 2)
    assert (one.sticky, one.retries.budget, one.retries.attempts) == ("user", 0, 3)
    assert main.models == {"gpt-4o*": "llama-70b"}
