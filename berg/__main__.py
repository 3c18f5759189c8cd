from berg.cli import main

main()
