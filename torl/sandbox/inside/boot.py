"""Starts the zygote in the tool environment's Python, where torl need not be installed.

    python -s -S -P -B -X utf8 boot.py SANDBOX_PACKAGE_DIR CONFIG_JSON

Names ``torl`` and ``torl.sandbox`` stand for folders only, so that their own __init__ files, and
what those import, stay out of the zygote and of the children forked from it.
"""

import json
import os
import sys


def main() -> None:
    here, config = sys.argv[1], json.loads(sys.argv[2])
    sys.argv[:] = ["snippet.py"]
    sys.orig_argv[:] = ["python", "snippet.py"]
    for name, folder in (("torl", os.path.dirname(here)), ("torl.sandbox", here)):
        package = type(sys)(name)
        package.__path__ = [folder]
        sys.modules[name] = package
    from torl.sandbox.inside.zygote import serve

    serve(config)


if __name__ == "__main__":
    main()
