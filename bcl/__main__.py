from bcl.cli.main import main

main()
