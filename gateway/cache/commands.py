"""Read commands of a shell, as people and agents quote them: "Command: git push", "Is it safe to run make?". Pure.

Every word of a command decides what it does. So two texts that quote commands must have the same ones, in the same case
and order. In prose that only mentions a program ("squash commits with git") its options and its subcommand count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.cache.exclusive_words import word_set
from gateway.words import LETTERS

MAX_CHUNKS = 256  # parts between spaces of one text

# Programs whose name is no word of everyday.
_PROGRAMS = word_set(
    "7z ansible ansible-playbook apk apt apt-get argocd awk aws bazel bcdedit bq brew buildah cargo certbot "
    "chattr chgrp chmod chown chroot cmake cp crictl crontab ctr curl cvs dd df diskpart dnf docker doctl dotnet "
    "dpkg dropdb du eksctl esbuild eslint etcdctl eval fdisk ffmpeg firewall-cmd flake8 flyctl fmt fsck gcc "
    "gcloud git gpg gradle grep gsutil gunzip gzip hg htop ifconfig insmod ipconfig iptables istioctl javac "
    "journalctl jq k3s k9s killall kops kubeadm kubectl kubelet kustomize linode-cli ln ls lsblk lsof minikube "
    "mkdir mkfs mkfs.ext4 modprobe mongosh mv mvn mypy mysql mysqldump nc netcat netsh netstat ngrok nmap nmcli "
    "npm npx nvm openssl pacman parted pg_dump pg_restore pip pip3 pipenv pipx pkill pm2 pnpm podman printenv "
    "printf psql pwd pytest python3 rclone redis-cli regedit rm rmdir robocopy rsync ruff rustup s3cmd scp sed "
    "sftp skopeo sqlite3 ssh ssh-keygen sudo svn swapoff swapon sysctl systemctl tar taskkill tcpdump terraform "
    "tmux tofu traceroute tsc ufw umount uname uniq unzip useradd userdel usermod velero vitest webpack wget "
    "winget wrangler xargs xcopy yarn yum zsh zypper"
)
# Programs whose name is one. They count where a command is expected.
_ALSO_WORDS = word_set(
    "go java black kind flux vault snap stat ip rails rake composer bundle heroku firebase docker-compose ninja "
    "packer nomad consul buck jest flatpak sh su tee gem az gh uv oc mc php ps conda nginx helm truncate rename "
    "prettier bun ash shred zip unlink reboot shutdown poetry vagrant passwd mocha powershell vite pulumi vercel "
    "netlify supabase deno bash poweroff make find cat kill cut sort head tail top time test date watch service "
    "host node python perl ruby screen less more at who split join paste install mount echo touch man code export "
    "source history alias set unset halt init cd del format move copy type dir erase replace attrib cron exec "
    "nohup nice wait which whereis env id diff patch yes seq sleep tree file free ping dig look script ed vi vim "
    "nano emacs open start stop bg fg jobs"
)
# In front of a command.
_LEADS = word_set(
    "run runs running ran rerun execute executes executing exec invoke command commands cmd shell terminal bash "
    "sudo doas console do does type typing enter entering use using call calling allow approve explain permit "
    "deny führe ausführen befehl befehls kommando exécute exécuter commande lance lancer ejecuta ejecutar comando "
    "correr esegui eseguire executa executar rodar uruchom uruchomić polecenie polecenia "
    "\u0437\u0430\u043f\u0443\u0441\u0442\u0438 \u0437\u0430\u043f\u0443\u0441\u0442\u0438\u0442\u044c "
    "\u043a\u043e\u043c\u0430\u043d\u0434\u0430 \u043a\u043e\u043c\u0430\u043d\u0434\u0443"
)
# Those behind which also a word of every day is a program.
_SURE_LEADS = word_set(
    "run runs running execute executes executing exec command cmd sudo doas befehl kommando commande comando "
    "lance ejecuta exécute führe"
)
# Words in front of a colon or a question mark that is followed by a command and nothing else.
_LABELS = word_set(
    "approve approval allow tool input command commands cmd shell bash terminal run execute sh zsh powershell "
    "console befehl kommando commande comando polecenie \u043a\u043e\u043c\u0430\u043d\u0434\u0430 "
    "\u30b3\u30de\u30f3\u30c9"
)
# Words of a sentence around a command. They are not compared.
_PROSE = word_set(
    "a an the this that it is are was be to of for me my i you your we can could should would will may might must "
    "do does did what whats what's how why when which happens happen if run running runs execute executing "
    "executed execution command commands cmd shell terminal safe safely dangerous risky harmful harmless okay ok "
    "allowed allow approve please explain describe tell about mean means meaning just now here there using use "
    "used following line and or not with on in from as by at thanks thank user users wants want agent tool bash "
    "don't isn't it's i'm"
)
# A text without any of these and without an option has no command. The other words of `_LEADS` are too frequent.
TRIGGERS = (_PROGRAMS | _LEADS | _LABELS) - _PROSE - word_set(
    "type typing enter entering using call calling permit deny"
) | (word_set("run runs running execute executes executing command commands cmd shell terminal bash"))

_DOTTED = re.compile(r"[\w/]\.\w")
# A text of these alone hints at no command.
PLAIN_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789 ?,!'\"();")
_FIRST_SIGNS = frozenset("-$#>%./~")
_OPTION = re.compile(r"(?<![^\s`'\"(])--?[A-Za-z][\w-]*(?:[=:][^\s`'\"?]+)?|(?<![^\s`'\"(])\+[a-z]\b")
_SHORT_OPTION = re.compile(r"-[A-Za-z]{1,2}|--[A-Za-z].*")
_ARGUMENT = re.compile(r"-{1,2}\w|/[A-Za-z?](?:\s|\Z)|[\w~.-]*[/.][\w~./-]*[A-Za-z]\w*\Z")  # behind a program
_SCRIPT = re.compile(r"(?:\.{1,2}|~)?/[\w./-]+|[\w-]+\.(?:sh|py|exe|bat|ps1|pl|rb|js)")  # a program by its path
_LABEL = re.compile(r"([^:?\n]{1,80})[?:]['\"`)]?\s")
_ENDS = ".,;:?!"
_WRAPS = "`'\"()\u201c\u201d\u2018\u2019\u00ab\u00bb\u3002\uff1f"
_PROMPTS = frozenset(("$", "#", ">", "%", ">>>"))


@dataclass(frozen=True, slots=True)
class Command:
    """The command of one text."""

    words: tuple[str, ...]  # from the program to the end of the text; empty where a program is only mentioned
    options: tuple[str, ...]  # in the order of the alphabet
    subcommands: frozenset[tuple[str, str]]  # program and the word behind it


def may_have_command(plain: str) -> bool:
    """Return whether the signs of a text hint at a command. `plain` is the text in lower case, with single spaces."""
    if plain[:1] in _FIRST_SIGNS or " -" in plain or " /" in plain or ": " in plain:
        return True
    return _DOTTED.search(plain) is not None


def command_in(text: str) -> Command | None:
    """Return the command of a text, or None if it has none."""
    chunks = text.split(maxsplit=MAX_CHUNKS)[:MAX_CHUNKS]
    cores = [chunk.strip(_WRAPS).rstrip(_ENDS).strip(_WRAPS) for chunk in chunks]
    start, subcommands = _start_behind_label(text, chunks), set[tuple[str, str]]()
    for at, core in enumerate(cores):
        if not _is_program(chunks, cores, at):
            continue
        if start is None and (_is_expected(chunks, cores, at) or _ARGUMENT.match(_next(chunks, at))):
            start = at
        if core not in ("sudo", "doas") and _next(cores, at).lower() not in _PROSE:
            subcommands.add((core, _next(cores, at)))
    options = tuple(sorted(_OPTION.findall(text)))
    if start is None and not subcommands:
        options = tuple(filter(_SHORT_OPTION.fullmatch, options))  # others may be prose: "15 year -old"
        if not options:
            return None
    return Command(() if start is None else _words_from(chunks, cores, start), options, frozenset(subcommands))


def _next(parts: Sequence[str], at: int) -> str:
    return parts[at + 1] if at + 1 < len(parts) else ""


def _is_program(chunks: Sequence[str], cores: Sequence[str], at: int) -> bool:
    core = cores[at]
    if core in _PROGRAMS:
        return True
    if core in _ALSO_WORDS:
        behind = _next(chunks, at)
        if _ARGUMENT.match(behind):
            return True
        before = cores[at - 1].lower() if at else ""
        return (
            _is_expected(chunks, cores, at) and (before in _SURE_LEADS or before not in _LEADS) and _goes_on(cores, at)
        )
    return _is_expected(chunks, cores, at) and _SCRIPT.fullmatch(core) is not None


def _is_expected(chunks: Sequence[str], cores: Sequence[str], at: int) -> bool:
    """Return whether a command may begin here: at the start, behind a colon or a prompt, or a word such as "run"."""
    if at == 0 or chunks[at][0] == "`":
        return True
    return cores[at - 1].lower() in _LEADS or chunks[at - 1][-1] == ":" or chunks[at - 1] in _PROMPTS


def _goes_on(cores: Sequence[str], at: int) -> bool:
    """Return whether an argument or nothing follows a word that may be a program.

    "run make" and "run make clean" are commands. "run at night" and "make a cake" are none.
    """
    behind = _next(cores, at).lower()
    return at > 0 and behind not in _PROSE - {"run", "install", "test"}


def _start_behind_label(text: str, chunks: Sequence[str]) -> int | None:
    """Return where the text behind a prompt, or behind a label such as "Command:", begins."""
    if chunks and chunks[0] in _PROMPTS and len(chunks) > 1:
        return 1
    for match in _LABEL.finditer(text[:400]):
        if not _LABELS.isdisjoint(LETTERS.findall(match[1].lower())):
            return len(chunks) - len(text[match.end() :].split())
    return None


def _words_from(chunks: Sequence[str], cores: Sequence[str], start: int) -> tuple[str, ...]:
    """Return the words of a command without the words of the sentence behind it."""
    end = len(chunks)
    while end > start + 1 and cores[end - 1].lower() in _PROSE:
        end -= 1
    return tuple(core or chunk for chunk, core in zip(chunks[start:end], cores[start:end], strict=True))


def differ(mine: Command | None, other: Command | None) -> bool:
    """Return whether two texts have other commands."""
    if mine is None or other is None:
        command = mine or other
        return command is not None and (bool(command.options) or any(map(_ARGUMENT.match, command.words[1:2])))
    if mine.options != other.options:
        return True
    if mine.words and other.words:
        return mine.words != other.words
    programs = {program for program, _ in mine.subcommands} & {program for program, _ in other.subcommands}
    return any(
        {word for name, word in mine.subcommands if name == program}.isdisjoint(
            word for name, word in other.subcommands if name == program
        )
        for program in programs
    )
