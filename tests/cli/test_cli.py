"""The command line as a person meets it: one sentence, exit code 2, no traceback."""

import functools
import inspect
import io
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bcl import zoo
from bcl.api import console
from bcl.attacks.suites import ATTACK_NAMES, SUITES
from bcl.cli import commands
from bcl.cli.main import COMMANDS, Command, functions_of, main
from bcl.cli.options import ATTACKS, NO_OPTIONS, WORDS, options_of
from bcl.config import config_from_toml, resolve
from bcl.policies.importers import FORMATS
from bcl.recipes import RECIPES
from bcl.result import Listing


@pytest.fixture
def bcl(in_folder):
    """Run a command line in an empty folder; gives exit code, stdout, stderr."""
    return in_folder


def test_help_lists_every_command(bcl) -> None:
    code, out, _ = bcl("--help")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines() if line.startswith("  bcl ")] == [*COMMANDS, "COMMAND"]
    assert "  bcl import FILE --format FORMAT --game GAME --out PATH [options] [--game.key value]\n" in out
    assert "  bcl bench {env,attack} [GAME ...] [options]\n      Measure this machine: " in out
    assert "  bcl status RUN\n      Show where a run stands" in out
    assert bcl()[1] == out


def test_a_mistake_is_broken_between_words_in_a_terminal_alone(bcl, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = ("train", "cartpole", "--recipe", "nonsense")
    err = bcl(*mistake)[2]
    assert len(err.splitlines()) == 1
    monkeypatch.setattr(console, "err", Console(file=io.StringIO(), force_terminal=True, width=60))
    lines = bcl(*mistake)[2].splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(lines) == err.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(bcl, command: str) -> None:
    code, out, _ = bcl(command, "--help")
    assert code == 0
    assert f"bcl {command}" in out


def test_help_says_types_in_words(bcl) -> None:
    for command in COMMANDS:
        out = bcl(command, "--help")[1]
        assert not re.search(r"\bSTR\b|\bINT\b|\bFLOAT\b|None", out), command


def test_the_help_of_train_shows_the_settings_that_people_use(bcl) -> None:
    out = " ".join(bcl("train", "--help")[1].split())
    for words in (
        "--algo {dqn,ppo} The learner.",
        "--bootstrap {auto,vanilla,radial}",
        "--dqn.steps NUMBER Agent steps",
    ):
        assert words in out
    for words in (
        "--init PATH",
        "--seed NUMBER",
        "--device DEVICE",
        "--wandb PROJECT",
        "--ray-address ADDRESS",
        "--curriculum.target BUDGET",
        "--evaluation.eps BUDGET,...",
    ):
        assert words in out
    assert out.index("--recipe") < out.index("--executor")


@pytest.mark.parametrize("command", ["attack", "video"])
def test_help_lists_the_attacks(bcl, command: str) -> None:
    words = re.split(r"[\s,│.|]+", bcl(command, "--help")[1])
    assert {*ATTACK_NAMES} - {"pgd-10"} <= {*words}
    assert "pgd-N" in words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands_and_options(bcl, shell: str) -> None:
    code, out, _ = bcl("--completion", shell)
    assert code == 0
    assert {*COMMANDS} <= {*re.findall(r"[a-z]+", out)}
    assert "recipe" in out
    if shell == "bash":
        assert re.search(r"'--protocol'.*?'choices': \['fixed', 'first'\]", out)
    assert out.count("'train': ['acrobot', ") == 1


def test_words_that_shells_complete_are_those_that_are_taken() -> None:
    assert WORDS["suite"] == tuple(SUITES)
    assert {*ATTACKS} == {*ATTACK_NAMES}
    assert WORDS["format"] == FORMATS


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("train cart", ["cartpole"]),
        ("train pong --recipe bcl-r", ["bcl-radial", "bcl-radial+at", "bcl-ratchet-at"]),
        ("attack mine --suite ", [*SUITES]),
        ("attack mine --attack pgd squ", ["square"]),
        ("attack mine --attack pgd --su", ["--suite"]),
        ("video mine --attack multi", ["multi", "multi-t"]),
        ("attack z", [f"zoo:{name}" for name in zoo.names()]),
        ("compare run z", [f"zoo:{name}" for name in zoo.names()]),
        ("zoo pong-v", ["pong-vanilla"]),
        ("import x.zip --format sb", ["sb3"]),
        ("import x.zip --game fru", ["fruitbot"]),
        ("bench env po", ["pong"]),
        ("train pong --device cu", ["cuda"]),
        ("train pong --device = cu", ["cuda"]),  # bash splits words at '=' and ':'
        ("train pong --device =", ["auto", "cpu", "cuda"]),
        ("attack zoo : pong-v", ["pong-vanilla"]),
        ("attack zoo :", [*zoo.names()]),
        ("compare zoo : pong-radial zoo : pong-v", ["pong-vanilla"]),
        ("train pong --al", ["--algo"]),
        ("train pong --algo ", ["dqn", "ppo"]),
        ("train pong --dqn.", ["--dqn.learning_rate", "--dqn.steps"]),
        ("train pong --dqn.steps ", []),
        ("attack runs/", []),  # file names, by bash itself
        ("train pong --config ", []),
        ("status ", []),
    ],
)
def test_a_shell_completes_words(completion: Path, typed: str, offered: list[str]) -> None:
    words = ["bcl", *typed.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    script = f'source {completion}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _bcl; echo ${{#COMPREPLY[@]}} "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    count, *found = done.stdout.split()
    assert sorted(found) == sorted(offered)
    assert (int(count), done.stderr) == (len(offered), "")  # an empty word would keep bash from completing file names


def test_a_bash_in_a_terminal_completes_files_names_of_the_zoo_and_settings(completion: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "my file.toml").touch()
    terminal, inside = pty.openpty()
    words = ["bash", "--norc", "--noprofile", "-i"]
    plain = {**os.environ, "TERM": "dumb", "INPUTRC": "/dev/null"}
    shell = subprocess.Popen(words, stdin=inside, stdout=inside, stderr=inside, cwd=tmp_path, env=plain, start_new_session=True)  # fmt: skip

    def typed(keys: str) -> str:
        os.write(terminal, keys.encode() + b"\n")
        seen, end = "", time.monotonic() + 60
        while not (found := re.search(r"\[\[(.*)\]\]", seen)) and time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                seen += os.read(terminal, 65536).decode()
        assert found, seen
        return found[1]

    try:
        typed(f"source {completion}; bcl() {{ printf '[''['; printf '<%s>' \"$@\"; printf ']'']\\n'; }}; bcl")
        assert typed("bcl attack ru\t") == "<attack><runs/>"
        assert typed("bcl attack runs/m\t") == "<attack><runs/mine/>"
        assert typed("bcl train pong --config m\t") == "<train><pong><--config><my file.toml>"
        assert typed("bcl attack zoo:pong-v\t") == "<attack><zoo:pong-vanilla>"
        assert typed("bcl attack z\tpong-v\t") == "<attack><zoo:pong-vanilla>"
        assert typed("bcl train pong --al\tp\t --dqn.s\t") == "<train><pong><--algo><ppo><--dqn.steps>"
        assert typed("bcl attack mine --suite=pa\t") == "<attack><mine><--suite=paper>"
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)
        os.close(inside)


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
def test_a_fish_completes_words_and_files(bcl, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "completion.fish").write_text(bcl("--completion", "fish")[1])
    for typed, offered in {
        "train acr": ["acrobot"],
        "train acrobot --recipe paced-r": ["paced-radial", "paced-radial+at"],
        "attack zoo:pong-v": ["zoo:pong-vanilla"],
        "attack ru": ["runs/"],
    }.items():
        words = ["fish", "--no-config", "-c", f"source completion.fish; complete -C 'bcl {typed}'"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == offered


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_a_zsh_in_a_terminal_completes_words_and_files(bcl, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "_bcl").write_text(bcl("--completion", "zsh")[1])
    terminal, inside = pty.openpty()
    plain = {**os.environ, "TERM": "dumb", "ZDOTDIR": str(tmp_path / "none")}
    shell = subprocess.Popen(["zsh", "-f", "-i"], stdin=inside, stdout=inside, stderr=inside, cwd=tmp_path, env=plain, start_new_session=True)  # fmt: skip

    def typed(keys: str) -> str:
        os.write(terminal, keys.encode())
        seen, end = "", time.monotonic() + 60
        while not (found := re.search(r"\[\[(.*?)\]\]", seen)) and time.monotonic() < end:
            if select.select([terminal], [], [], 1.5)[0]:
                seen += os.read(terminal, 65536).decode()
            else:
                os.write(terminal, b"\n")  # what was typed is complete by now
        assert found, seen
        return found[1]

    try:
        define = "bcl() { printf '[''['; printf '<%s>' \"$@\"; printf ']'']\\n'; }"
        typed(f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -D; {define}; bcl\n")
        assert typed("bcl train acr\t") == "<train><acrobot>"
        assert typed("bcl train pong --recipe dist\t") == "<train><pong><--recipe><distilled>"
        assert typed("bcl attack zoo:pong-v\t") == "<attack><zoo:pong-vanilla>"
        assert typed("bcl attack mine --suite=pa\t") == "<attack><mine><--suite=paper>"
        assert typed("bcl attack ru\t") == "<attack><runs>"  # it drops the slash behind which nothing comes
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)
        os.close(inside)


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("shell") / "completion.bash"
    made = subprocess.run([sys.executable, "-m", "bcl", "--completion", "bash"], capture_output=True, check=True)
    file.write_bytes(made.stdout)
    return file


def test_help_does_not_import_torch() -> None:
    code = "import sys, bcl.cli.main as m\ntry: m.main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    "words",
    [
        ["presets"],
        ["presets", "pong"],
        ["train", "pnog"],
        ["import", "x", "--format", "f", "--game", "g", "--out", "o"],
        ["--completion", "bash"],  # reads the options of all commands, as their help does
        *([name, "--help"] for name in ("attack", "certify", "video")),
    ],
)
def test_cheap_commands_do_not_import_torch(words: list[str]) -> None:
    code = f"import sys, bcl.cli.main as m\ntry: m.main({words})\nexcept SystemExit: assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_is_declared_once(command: str) -> None:
    names = [option.name for function in functions_of(command) for option in options_of(function)]
    assert len(names) == len({*names})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_a_parameter_with_help(command: str) -> None:
    for function in functions_of(command):
        options = {option.parameter: option.help for option in options_of(function)}
        assert options.keys() == inspect.signature(function).parameters.keys() - NO_OPTIONS
        assert all(options.values()), options


def test_presets_lists_games_and_recipes(bcl) -> None:
    code, out, _ = bcl("presets")
    assert code == 0
    for word in ("pong", "fruitbot", "cartpole", "bcl-mos-at", "bcl-ratchet-at"):
        assert word in out
    for name, recipe in RECIPES.items():
        assert any(line.split(maxsplit=1)[:1] == [name] and recipe.summary in line for line in out.splitlines()), name


def test_a_printed_preset_is_a_config_file(bcl, tmp_path: Path) -> None:
    code, out, _ = bcl("presets", "pong", "--recipe", "bcl-mos-at")
    assert code == 0
    assert tomllib.loads(out)["curriculum"]["target"] == "25/255"
    assert config_from_toml(out) == resolve("pong", recipe="bcl-mos-at")


def test_presets_take_settings_of_the_game(bcl) -> None:
    code, out, _ = bcl("presets", "cartpole", "--game.max_steps", "50")
    assert code == 0
    assert "max_steps = 50 " in out


def mistakes(tmp_path: Path) -> list[tuple[list[str], str]]:
    (tmp_path / "broken.toml").write_text("[dqn")
    (tmp_path / "other.toml").write_text("[ppo]\nsteps = 3\n")
    (tmp_path / "unknown.toml").write_text("[dqn]\nstpes = 3\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("")
    (tmp_path / "garbage.pt").write_bytes(b"\x80garbage")
    torch.save({"a": 1}, tmp_path / "other.pt")
    to = ["--format", "radial-ppo", "--game", "fruitbot", "--out", "new.safetensors"]
    return [
        (["train", "pnog"], "did you mean 'pong'"),
        (["train"], "GAME"),
        (["train", "pong", "--eps", "3"], "3/255"),
        (["train", "pong", "--curriculum.target", "3"], "3/255"),
        (["train", "pong", "--config", "broken.toml"], "not valid TOML"),
        (["train", "pong", "--config", "unknown.toml"], "did you mean 'steps'"),
        (["train", "pong", "--config", "none.toml"], "cannot read"),
        (["train", "pong", "--dqn.stpes", "3"], "did you mean 'steps'"),
        (["train", "pong", "--out", "taken"], "exists already"),
        (["train", "fruitbot", "--dqn.steps", "10"], "set ppo.steps, or train with --algo dqn"),
        (["train", "pong", "--ppo.rollout", "10"], "leave it out, or train with --algo ppo"),
        (["train", "pong", "--config", "other.toml"], "ppo.steps changes nothing, the learner is dqn"),
        (["train", "cartpole", "--recipe", "at", "--dqn.steps", "500"], "dqn.steps 500 end before the first update"),
        (["train", "pong", "--recipe", "radail"], "did you mean 'radial'"),
        (["train", "breakout", "--recipe", "bcl-mos-at"], "no target for a curriculum"),
        (["train", "pong", "--recipe", "bcl-radial", "--curriculum.target", "9/255"], "has no target"),
        (["train", "pong", "--ray-address", "auto"], "add --executor ray"),
        (["train", "pong", "--ray-gpus", "1"], "add --executor ray"),
        (["train", "pong", "--ray-cpus", "2"], "add --executor ray"),
        (["train", "pong", "--executor", "ray", "--ray-cpus", "-1"], "cannot be negative"),
        (["train", "fruitbot", "--ppo.rollout", "100"], "no multiple of ppo.batch_size"),
        (["resume", "taken"], "not a run directory"),
        (["train", "pong", "--seed", "x"], "--seed"),
        (["trian"], "did you mean 'train'"),
        (["--completion", "ksh"], "one of bash, zsh, fish"),
        (["presets", "pnog"], "did you mean 'pong'"),
        (["presets", "pong", "extra"], "extra"),
        (["presets", "--recipe", "at"], "name the game too"),
        (["bench", "what"], "env"),
        (["bench", "env", "--nope", "1"], "--nope"),
        (["import", "none.pt", *to], "not a file"),
        (["import", "garbage.pt", *to], "cannot be read safely"),
        (["import", "other.pt", *to], "no state dict"),
        (["import", "other.pt", *to, "--ppo.steps", "3"], "ppo.steps changes nothing in an import; leave it out"),
        (["import", "other.pt", *to, "--network.hidden", "3"], "network.hidden changes nothing in an import"),
        (["import", "other.pt", *to, "--algo", "ppo"], "algo changes nothing in an import"),
        (["import", "other.pt", *to, "--game.num_levels", "0"], "no state dict"),
        (["import", "garbage.pt"], "--format is missing; see 'bcl import --help'"),
        (["import", "x.zip", "--format", "sb4", "--game", "cartpole", "--out", "y"], "did you mean 'sb3'"),
        (
            ["attack", "zoo:pong-vanilla", "--episodes", "1.5"],
            "episodes = '1.5' is not a whole number; give --episodes a whole number",
        ),
        (["attack", "zoo:pong-vanilla", "--protocol", "frist"], "did you mean 'first'"),
        (["attack", "zoo:pong-vanilla", "--attack", "pdg-30"], "did you mean 'pgd-30'"),
        (["attack", "zoo:pong-vanilla", "--attack", "pgd-0"], "1 to 9999 steps"),
        (["attack"], "zoo:NAME is missing"),
        (["train", "pong", "--seed"], "--seed has no value"),
        (["train", "pong", "--seed", "--recipe", "at"], "--seed has no value"),
        (["train", "pong", "--out", ""], "--out has no value"),
        (["train", "pong", "--init="], "--init has no value"),
        (["train", "--dqn.steps", "1", "pong"], "write the name first: bcl train GAME"),
        (["presets", "--tempo", "fast"], "write the name first: bcl presets [GAME]"),
        (["attack", "--eps", "0.1", "run"], "zoo:NAME is missing; write it first"),
        (
            ["train", "cartpole", "--recipe", "bcl-mos-at", "--curriculum.increment", "1e-300"],
            "larger curriculum.increment",
        ),
        (["train", "pong", "--say", "x"], "unknown argument '--say'"),
        (["attack", "zoo:pong-vanilla", "--listener", "x"], "unknown argument '--listener'"),
    ]


def test_every_mistake_is_one_sentence_with_exit_code_2(bcl, tmp_path: Path) -> None:
    for words, expected in mistakes(tmp_path):
        code, out, err = bcl(*words)
        assert code == 2, words
        assert expected in err, (words, err)
        assert err.startswith("bcl: "), err
        assert err.count("\n") == 1, err
        assert "Traceback" not in err + out
    assert not (tmp_path / "runs").exists()


def test_a_mistake_in_a_real_process() -> None:
    result = subprocess.run([sys.executable, "-m", "bcl", "train", "pnog"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "bcl: unknown game 'pnog'; did you mean 'pong'?\n"


def test_a_deleted_working_directory_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(SystemExit) as ended:
        main(["presets"])
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err == "bcl: the folder that this terminal is in was deleted; change to another with 'cd'\n"
    )


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    from bcl.errors import GameError

    with pytest.raises(GameError):
        main(["train", "pnog", "--debug"])


@pytest.mark.parametrize(
    ("game", "package", "words"),
    [("pong", "ale_py", "pip install 'ale-py"), ("fruitbot", "procgen", "--no-deps procgen-mirror")],
)
def test_a_missing_extra_names_the_pip_command(
    bcl, monkeypatch: pytest.MonkeyPatch, game: str, package: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = bcl("bench", "env", game, "--seconds", "0.1", "--num-envs", "2")
    assert code == 2
    assert words in err


@pytest.mark.parametrize(
    "options", [["--num-envs", "0"], ["--seconds", "nan"], ["--seconds", "inf"], ["--threads", "-5"]]
)
def test_bench_refuses_nonsense(bcl, options: list[str]) -> None:
    assert bcl("bench", "env", "cartpole", *options)[0] == 2


def test_a_terminal_without_unicode_is_no_reason_to_fail() -> None:
    code = (
        "import bcl.cli.main as m; m.chosen = lambda words: m.Command(lambda: '1 ± 2, \\N{MINUS SIGN}3, ü'); m.main([])"
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1 +- 2, -3, ?\n", "")


def test_a_full_disk_for_standard_output_is_one_sentence() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "bcl", "presets"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert result.returncode == 2
    assert result.stderr == "bcl: No space left on device; check paths and space\n"


def test_import_writes_a_policy(bcl, released: Path) -> None:
    arguments = [
        str(released / "FruitBot_ppo.pt"),
        "--format",
        "radial-ppo",
        "--game",
        "fruitbot",
        "--out",
        "p.safetensors",
    ]
    code, out, _ = bcl("import", *arguments)
    assert code == 0
    assert "626,256 parameters" in out
    code, _, err = bcl("import", *arguments)
    assert code == 2
    assert "exists already" in err


def test_bench_measures(bcl) -> None:
    code, out, _ = bcl("bench", "env", "cartpole", "--seconds", "0.1", "--num-envs", "2")
    assert code == 0
    assert "cartpole" in out


def test_interrupt_exits_130(bcl, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bcl.cli.main.chosen", interrupt)
    assert bcl("presets") == (130, "", "bcl: interrupted; give the same command again\n")


SIGNALLED_WHILE_IMPORTED = """import os, signal
try:
    os.kill(os.getpid(), signal.{signal})
except KeyboardInterrupt:
    raise RecursionError from None  # what NumPy makes of it
os.write(1, b"went on")
os._exit(0)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("ignored", [False, True])
def test_a_signal_while_pytorch_is_imported_is_one_sentence(tmp_path: Path, name: str, ignored: bool) -> None:
    (tmp_path / "torch.py").write_text(SIGNALLED_WHILE_IMPORTED.format(signal=name))
    before = "SIG_IGN" if ignored else "default_int_handler" if name == "SIGINT" else "SIG_DFL"
    code = f"import signal\nsignal.signal(signal.{name}, signal.{before})\nfrom bcl.cli.main import main\nmain()"
    words = [sys.executable, "-c", code, "train", "cartpole", "--out", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    interrupted = (130, "", "bcl: interrupted; give the same command again\n")
    ended = interrupted if name == "SIGINT" else (-15, "", "")  # it also ends what hangs
    assert (done.returncode, done.stdout, done.stderr) == ((0, "went on", "") if ignored else ended)
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_fails_is_one_sentence(bcl, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nSearch for ...")

    monkeypatch.setattr("bcl.cli.main.chosen", lambda _: Command(fail))
    code, _, err = bcl("presets")
    assert code == 1
    assert err == (
        "bcl: the GPU failed (CUDA error: an illegal memory access was encountered); give the command again, what was done is kept\n"
    )
    with pytest.raises(RuntimeError, match="illegal memory access"):
        main(["presets", "--debug"])


def test_an_option_for_several_values_is_given_once(bcl) -> None:
    code, _, err = bcl("attack", "x", "--eps", "0.01", "--eps=0.02")
    assert (code, err) == (2, "bcl: --eps is given twice; give it once, with all its values\n")
    assert "'x' does not exist" in bcl("attack", "x", "--seed", "1", "--seed", "2")[2]  # the last counts, as everywhere


def test_a_wrong_word_is_named_as_it_is_written(bcl) -> None:
    assert bcl("bench", "foo")[2] == "bcl: what = 'foo' is not a choice; give WHAT one of env, attack\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bcl", "presets", "pong"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    time.sleep(0.1)
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()


def test_the_lines_of_a_status_are_broken_between_words_in_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    phase = "  at, next: phase 2  10/255  runs nominal 20.95 20.8 21  attacked -18.05 -21 12.4  kept 3  next -> 15/255  12 min"
    found = Listing("mine", [], f"runs/{'long-name-' * 9}: at on pong\n{phase}\n  finished", {})
    monkeypatch.setattr(found.__class__, "state", "finished", raising=False)
    call = functools.partial(lambda path: found, Path("mine"))
    commands.status(found, call)
    assert capsys.readouterr().out == f"{found}\nnext: bcl report mine\n"
    monkeypatch.setattr(console, "out", Console(force_terminal=True, width=80))
    commands.status(found, call)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"runs/{'long-name-' * 9}:"  # a path stays whole
    assert max(map(len, lines[2:])) <= 80
    assert " ".join(" ".join(lines).split()).startswith(" ".join(str(found).split()))
