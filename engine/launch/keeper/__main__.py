"""``python -I -S FOLDER ROOT FD``: FOLDER is this one, ROOT has adbg in it, FD is the keeper's end of the socket.

Isolated and without site, it starts in a few ms, and no environment variable meant for the program gets in.
"""

import sys

sys.path[0] = sys.argv[1]  # in place of this folder

from adbg.engine.launch.keeper.loop import main  # noqa: E402

sys.exit(main(int(sys.argv[2])))
